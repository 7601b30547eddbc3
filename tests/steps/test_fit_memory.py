"""What `ingot fit` says of memory, beside what libllama says that it would hold, and ONNX Runtime holds."""

import json
import subprocess

import pytest

import checkpoints
import families
from conftest import ROOT
from ingot.driver.catalogue.formats import gguf
from ingot.driver.catalogue.model import Model
from ingot.driver.commands import fit_forms
from ingot.formats.gguf import memory, metadata
from ingot.formats.onnx import memory as onnx
from ingot.model.config import read_config
from ingot.model.specs import parameters

LONG = {"max_position_embeddings": 131072}
MODELS = {  # as large as they are published; no weights are needed
    "Llama 3.1 8B": checkpoints.public_config("llama8b"),
    "Gemma 3 4B": families.GEMMA3 | LONG | {
        "vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024,
        "query_pre_attn_scalar": 256, "layer_types": None,
    },
    "DeepSeek V3": families.PUBLISHED["DeepSeek-V3"] | LONG,
    "Qwen3 30B-A3B": families.QWEN3_MOE | LONG | {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    },
}  # fmt: skip
KINDS, LENGTHS, KV_TYPES = ("q8_0", "q4_k_m"), (4096, 32768, 131072), ("f16", "q8_0")
ASKED = [[kind, length, kv, 1] for kind in KINDS for length in LENGTHS for kv in KV_TYPES]
ASKED += [["q8_0", 4096, "f16", 4]]


class Planned:
    """A model by its config.json alone."""

    tensor_bytes = Model.tensor_bytes

    def __init__(self, config):
        self.config = self.numbers = config


@pytest.mark.parametrize("name", MODELS)
def test_weights_cache_and_the_rest_are_what_libllama_says(name, forked, tmp_path):
    config = checkpoints.llama_config(**MODELS[name])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    checkpoints.write_json(
        folder / "config.json",
        {key: one for key, one in config.items() if one is not None or key in families.NULL},
    )
    checkpoints.tokenizer_of_demo(folder)
    done = forked(
        "llamacpp",
        ROOT / "tests/doubles/llama_memory.py",
        folder,
        tmp_path,
        given=json.dumps(ASKED),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.rpartition("answers: ")[2])

    model = Planned(read_config(folder / "config.json", can=metadata.CAN))
    kept = fit_forms.cached(fit_forms.shape_of(model.config, 0))
    widths = fit_forms.widths_of(model)
    for (kind, length, kv_type, requests), held in zip(ASKED, answers, strict=True):
        cache = memory.cache(kept, length, requests, kv_type)
        assert cache == pytest.approx(held["kv"], rel=0.001), (kind, length, kv_type)
        scratch = memory.scratch(widths, length)
        assert scratch == pytest.approx(held["compute"], rel=0.05), (kind, length, kv_type)
        whole = gguf.file_bytes(model, kind) + cache + scratch
        assert whole == pytest.approx(sum(held.values()), rel=0.05), (kind, length, kv_type)


WIDE = {
    "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variant", onnx.VALUE)
def test_a_prompt_takes_what_is_planned_of_onnx_runtime(variant, ok, python, tmp_path):
    """Two lengths: at the longer one most of it is the scores of one layer's attention."""
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint", tame=True, **WIDE)
    words = (
        "--checkpoint",
        checkpoint,
        "--dtype",
        variant or "fp32",
        "--onnx",
        tmp_path / "m.onnx",
    )
    ok("onnx", "export_onnx.py", *words, "--tokenizer", *sorted(checkpoint.glob("tokenizer*")))
    kept = 2 * WIDE["num_hidden_layers"] * WIDE["num_key_value_heads"] * WIDE["head_dim"]
    layers = onnx.Layers(WIDE["hidden_size"], WIDE["intermediate_size"], 32, kept)
    weights = parameters(read_config(checkpoint / "config.json")) * 4
    if variant == "int8":
        weights = sum(one.stat().st_size for one in (tmp_path / "m.onnx").iterdir())
    for length in (512, 2048):
        command = [python("genai"), ROOT / "tests/doubles/genai_memory.py", tmp_path / "m.onnx"]
        said = subprocess.run(
            [*map(str, command), str(length)], capture_output=True, text=True, check=True
        )
        planned = onnx.held(weights, layers, length, 1, variant)
        assert planned == pytest.approx(int(said.stdout.split()[-1]), rel=0.1), length
