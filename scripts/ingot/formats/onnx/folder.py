"""What lies beside the graph: the checkpoint's own small files, and how each consumer is told what it is.

Plain ONNX Runtime reads the graph, optimum's ORTModelForCausalLM config.json too, onnxruntime-genai
genai_config.json and the tokenizer's files.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ingot.base.fields import Number, Whole
from ingot.base.refused import Refused
from ingot.base.sealed import Contents
from ingot.formats.onnx.attention import PAST, PRESENT
from ingot.formats.onnx.decoder import (
    FUSED,
    GRAPH,
    GRAPHS,
    PORTABLE,
    PREFILL,
    opset_of,
)
from ingot.formats.onnx.weights import ACCURACY_LEVEL, Form
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.config import ModelConfig

ABOUT, GENAI = "graph.json", "genai_config.json"
DEFAULT_LENGTH = (
    4096  # tokens, where the model's context is longer: servers reserve the KV cache for it
)
ADVICE = (
    "set onnx.int8 to dynamic or blocks, a smaller onnx.block, or name layers in onnx.float_layers; or "
    "set `limits` of the catalogue"
)
SEARCH = {  # of generation_config.json, and what transformers does where it says nothing
    "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0,
}  # fmt: skip
SAID = {
    "do_sample?": (bool, None), "temperature?": (Number(), None), "top_k?": (Whole(0), None),
    "top_p?": (Number(), None), "repetition_penalty?": (Number(above=0), None),
}  # fmt: skip
IDS = (Whole(0), [Whole(0)], None)
SPECIAL = {"bos_token_id?": IDS, "eos_token_id?": IDS, "pad_token_id?": IDS}


@dataclass(frozen=True)
class Export:
    """All that an export is asked for."""

    form: Form
    graph: Annotated[str, "operators", tuple(GRAPHS)] = PORTABLE
    max_length: Annotated[int | None, "tokens that a server reserves room for"] = None

    def length(self, config: ModelConfig) -> int:
        return self.max_length or min(config.context, DEFAULT_LENGTH)

    def hold(self, source: Path, config: ModelConfig) -> None:
        """Refused: more tokens than the model takes, blocks that do not divide its rows."""
        if self.length(config) > config.context:
            raise Refused(
                f"{source}: a context of {config.context} tokens, expected {self.max_length} or more "
                "for onnx.max_length; lower it"
            )
        if self.graph == FUSED and config.head_dim % 16:
            raise Refused(
                f"{source}: heads of {config.head_dim} values, expected a multiple of 16 for onnx.graph "
                "fused: ONNX Runtime has no kernel for others; set portable"
            )
        block, blocks = self.form.block, self.form.dtype == "int8" and self.form.int8 == "blocks"
        widths = {config.hidden, config.ffn, config.heads * config.head_dim}
        odd = sorted(width for width in widths if width % block)
        if blocks and odd:
            raise Refused(
                f"{source}: rows of {odd[0]} values, expected a multiple of onnx.block, {block}; set a "
                "block that divides them, or int8: dynamic"
            )
        hold_layers(source, config, self.form)


def hold_layers(source: Path, config: ModelConfig, form: Form) -> None:
    """Refused: a layer to be left in float32 that the model does not have."""
    layers = {"model.embed_tokens", "lm_head"} | {
        f"model.layers.{n}.{name}"
        for n in range(config.layers)
        for name, one in config.family.layer.items()
        if len(one.shape) > 1
    }
    for name in form.float_layers:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            raise Refused(
                f"{source}: has no layer {name}, expected one for onnx.float_layers, such as lm_head, "
                "mlp.down_proj or model.layers.0.mlp.down_proj"
            )


def contents(
    checkpoint: Checkpoint, tokenizer: list[Path], config: ModelConfig, export: Export
) -> Contents:
    """Every file but the graph and its data."""
    found = {
        **{name_of(path): path for path in tokenizer},
        "config.json": checkpoint["config.json"],
        ABOUT: json.dumps(about(config, export), indent=2) + "\n",
    }
    if export.graph != PREFILL:
        genai = genai_config(config, export, special(tokenizer), search(tokenizer))
        found[GENAI] = json.dumps(genai, indent=2) + "\n"
    return found


def about(config: ModelConfig, export: Export) -> dict[str, Any]:
    form = export.form
    found: dict[str, Any] = {
        "graph": export.graph, "operators": GRAPHS[export.graph], "opset": opset_of(export.graph),
        "weights": form.dtype, "left_padding": export.graph == PORTABLE,
        "context": config.context, "max_length": export.length(config),
    }  # fmt: skip
    if form.dtype == "int8":
        found |= {"int8": form.int8, "float_layers": list(form.float_layers)}
        if form.int8 == "blocks":
            found |= {"block": form.block, "accuracy_level": ACCURACY_LEVEL}
    return found


def special(tokenizer: list[Path]) -> dict[str, Any]:
    """The special tokens' ids, generation_config.json's before config.json's: it lists every end token."""
    files = Checkpoint(tokenizer)
    sources = [
        files.optional_json(name, SPECIAL) for name in ("generation_config.json", "config.json")
    ]
    found = {}
    for name in (name.rstrip("?") for name in SPECIAL):
        said = (source.get(name) for source in sources)
        found[name] = next((ids for ids in said if ids not in (None, [])), None)
    if found["eos_token_id"] is None:
        print(
            "config.json: names no eos_token_id: what is generated ends by its length",
            file=sys.stderr,
        )
    return {name: ids for name, ids in found.items() if ids is not None}


def search(tokenizer: list[Path]) -> dict[str, Any]:
    """How tokens are chosen, by the model's own generation_config.json."""
    said = Checkpoint(tokenizer).optional_json("generation_config.json", SAID)
    return {name: usual if said.get(name) is None else said[name] for name, usual in SEARCH.items()}


def genai_config(
    config: ModelConfig, export: Export, ids: dict[str, Any], chosen: dict[str, Any]
) -> dict[str, Any]:
    """What onnxruntime-genai 0.18 reads."""
    ends = ids.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends] if ends is not None else []
    inputs = {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": f"{PAST}.%d.key",
        "past_value_names": f"{PAST}.%d.value",
    }
    if export.graph == PORTABLE:
        inputs["position_ids"] = "position_ids"
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": GRAPH,
        "head_size": config.head_dim,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "inputs": inputs,
        "outputs": {
            "logits": "logits",
            "present_key_names": f"{PRESENT}.%d.key",
            "present_value_names": f"{PRESENT}.%d.value",
        },
    }
    model = {
        "type": "llama", "context_length": config.context, "vocab_size": config.vocab,
        "bos_token_id": _first(ids.get("bos_token_id")), "eos_token_id": ends,
        "pad_token_id": _first(ids.get("pad_token_id", ends)), "decoder": decoder,
    }  # fmt: skip
    return {
        "model": {name: value for name, value in model.items() if value is not None},
        "search": {
            **chosen,
            "max_length": export.length(config),
            "past_present_share_buffer": export.graph == FUSED,
        },
    }


def _first(ids: int | list[int] | None) -> int | None:
    return (ids[0] if ids else None) if isinstance(ids, list) else ids
