"""A TensorRT-LLM checkpoint on disk, checked against what its own config.json says.

trtllm-build finds a wrong one after minutes, on a GPU, and some never: a bad rank file loads and
answers nonsense.  Here the first thing wrong is one line.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.base.fields import Whole, held, read_json
from ingot.base.refused import Refused
from ingot.formats.tensorrt import trtllm
from ingot.model.checkpoint.safetensors import Tensor, read_header
from ingot.model.config import ModelConfig
from ingot.model.families.table import FAMILIES
from ingot.model.layers import Experts
from ingot.model.rope import Llama3Rope
from ingot.model.tensors.dtypes import FLOATS, QUANTISED

LINEAR = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
NUMBERS = {  # of config.json -> of ModelConfig
    "vocab_size": "vocab",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_size": "head_dim",
    "intermediate_size": "ffn",
    "max_position_embeddings": "context",
    "norm_epsilon": "rms_eps",
    "rotary_base": "rope_theta",
}
FIXED = {  # what trtllm.document writes and nothing else may say
    "logits_dtype": "float32",
    "position_embedding_type": "rope_gpt_neox",
    "mlp_bias": False,
}
MOE = {"num_experts": Whole(high=4096), "top_k": Whole(), "normalization_mode": Whole()}
GROUP = 128  # input channels that share an int4 scale


@dataclass(frozen=True)
class Quant:
    """How the weights of the linear layers are stored: `packed` rows in a byte, and their scales.

    A scale's shape is of "one", of each "out" or "in" channel, or of each "group" of inputs.
    """

    dtype: str
    packed: int
    scales: dict[str, tuple[str, str]]  # name -> dtype, shape
    said: dict[str, Any] = field(
        default_factory=dict
    )  # what config.json says of it beside its name


QUANTS = {  # by quantization.quant_algo
    "FP8": Quant(
        "F8_E4M3",
        1,
        {
            "activation_scaling_factor": ("F32", "one"),
            "weights_scaling_factor": ("F32", "one"),
        },
    ),
    "W8A8_SQ_PER_CHANNEL": Quant(
        "I8",
        1,
        {
            "activation_scaling_factor": ("F32", "one"),
            "weights_scaling_factor": ("F32", "out"),
            "prequant_scaling_factor": ("F16", "in"),
        },
    ),
    "W4A16_AWQ": Quant(
        "I8",
        2,
        {
            "weights_scaling_factor": ("F32", "group"),
            "prequant_scaling_factor": ("F16", "in"),
        },
        {"group_size": GROUP, "has_zero_point": False, "pre_quant_scale": True},
    ),
}


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """What is in the directory: `ranks` holds the tensors of each rank's file by name."""

    folder: Path
    config: ModelConfig
    mapping: trtllm.Mapping
    dtype: str  # TensorRT-LLM's word
    quant: Quant | None
    document: dict[str, Any]
    ranks: list[dict[str, Tensor]]


def read(folder: Path) -> TrtllmCheckpoint:
    """The checkpoint in `folder`; stops with one line at the first thing wrong."""
    path = folder / "config.json"
    document = read_json(path)
    dtype = document.get("dtype")
    if not isinstance(dtype, str) or dtype not in trtllm.STORED:
        known = ", ".join(trtllm.STORED)
        raise Refused(f"{path}: dtype is {dtype}, expected one of {known}")
    config = _config(path, document)
    mapping = _mapping(path, document, config)
    if reason := trtllm.why_not(config, mapping):
        raise Refused(f"{path}: {reason}")
    algorithm = _algorithm(path, document)
    quant = QUANTS.get(algorithm)
    if quant and config.experts:
        raise Refused(f"{path}: quant_algo is {algorithm}, expected null of a model with experts")
    names = {file.name for file in folder.glob("rank*.safetensors")}
    wanted = [f"rank{rank}.safetensors" for rank in range(mapping.world)]
    if odd := sorted(names ^ set(wanted)):
        what = "one too many" if odd[0] in names else "missing"
        raise Refused(f"{folder / odd[0]}: {what}, expected {mapping.world} ranks")
    cuts, ranks = trtllm.cuts(config, mapping), []
    for rank, name in enumerate(wanted):
        shapes = trtllm.shapes(trtllm.of_stage(cuts, rank // mapping.tp))
        ranks.append(_rank(folder / name, expected(shapes, dtype, quant)))
    return TrtllmCheckpoint(folder, config, mapping, dtype, quant, document, ranks)


def expected(
    shapes: dict[str, tuple[int, ...]], dtype: str, quant: Quant | None
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each tensor of a rank's file, scales included."""
    found = {}
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if not quant or not layer.endswith(LINEAR):
            found[name] = (trtllm.stored(name, dtype), shape)
            continue
        out, inputs = shape
        found[name] = (quant.dtype, (out // quant.packed, inputs))
        sizes = {"one": (1,), "out": (out,), "in": (inputs,), "group": (out, inputs // GROUP)}
        for scale, (kind, size) in quant.scales.items():
            kind = trtllm.STORED[dtype] if kind == "F16" else kind
            found[f"{layer}.{scale}"] = (kind, sizes[size])
    return found


def _algorithm(path: Path, document: dict) -> str | None:
    quantization = document.get("quantization")
    keys = {"quant_algo", "kv_cache_quant_algo"}
    if (
        not isinstance(quantization, dict)
        or not keys <= set(quantization)
        or quantization["kv_cache_quant_algo"] is not None
    ):
        raise Refused(f"{path}: quantization is {quantization}, expected one without a KV cache's")
    algorithm = quantization.get("quant_algo")
    if algorithm is not None and (not isinstance(algorithm, str) or algorithm not in QUANTS):
        known = ", ".join(QUANTS)
        raise Refused(f"{path}: quant_algo is {algorithm}, expected null or one of {known}")
    wanted: dict[str, Any] = {"quant_algo": algorithm, "kv_cache_quant_algo": None}
    if algorithm:
        wanted |= {"exclude_modules": ["lm_head"], **QUANTS[algorithm].said}
    if repr(sorted(quantization.items())) != repr(sorted(wanted.items())):
        raise Refused(f"{path}: quantization is {quantization}, expected {wanted}")
    return algorithm


def _config(path: Path, document: dict) -> ModelConfig:
    for key, name in NUMBERS.items():
        number = document.get(key)
        kinds = int | float if name in ("rms_eps", "rope_theta") else int
        if isinstance(number, bool) or not isinstance(number, kinds) or number <= 0:
            raise Refused(f"{path}: {key} is {number!r}, expected a number above 0")
    if str(document.get("architecture")) not in FAMILIES:
        known = " or ".join(FAMILIES)
        raise Refused(f"{path}: architecture is {document.get('architecture')}, expected {known}")
    family = FAMILIES[document["architecture"]]
    biased = "attention_bias" in family.always
    own = {"attn_bias": biased, "hidden_act": trtllm.activation(family)}
    for key, value in {**FIXED, **own, **(family.trtllm or {})}.items():
        # TensorRT-LLM's defaults are other ones: what is absent is wrong too
        if document.get(key) != value or type(document[key]) is not type(value):
            raise Refused(f"{path}: {key} is {document.get(key)!r}, expected {value!r}")
    numbers = {ours: document[key] for key, ours in NUMBERS.items()}
    rope = _rope(path, document)
    config = ModelConfig(
        document["architecture"], **numbers, rope=rope, tied=False, attention_bias=biased,
        experts=_experts(path, document) if family.experts else None,
    )  # fmt: skip
    known = trtllm.document(config, trtllm.Mapping(), "f16")
    if unknown := sorted(set(document) - set(known)):
        raise Refused(f"{path}: {unknown[0]} is no key that we write")
    return config


def _experts(path: Path, document: dict[str, Any]) -> Experts:
    """Of a family whose feed-forward channels are those of an expert."""
    held(path, document, {"moe": MOE})
    numbers: dict[str, Any] = document["moe"]
    count, used = numbers["num_experts"], numbers["top_k"]
    if set(numbers) != set(MOE) or numbers["normalization_mode"] != 1 or used > count:
        raise Refused(
            f"{path}: moe is {numbers}, expected num_experts, top_k of at most as many, and "
            "normalization_mode 1"
        )
    return Experts(count, used, document["intermediate_size"])


def _rope(path: Path, document: dict) -> Llama3Rope | None:
    scaling = document.get("rotary_scaling")
    if scaling is None:
        return None
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if (
        not isinstance(scaling, dict)
        or set(scaling) != {"rope_type", *keys}
        or scaling["rope_type"] != "llama3"
        or not all(type(scaling[key]) in (int, float) for key in keys)
    ):
        raise Refused(
            f"{path}: rotary_scaling is {scaling}, expected rope_type llama3, its four numbers and "
            "nothing else"
        )
    return Llama3Rope(*(scaling[key] for key in keys))


def _mapping(path: Path, document: dict, config: ModelConfig) -> trtllm.Mapping:
    named = document.get("mapping")
    named = named if isinstance(named, dict) else {}
    tp: Any = named.get("tp_size")
    pp: Any = named.get("pp_size")
    for key, size in (("tp_size", tp), ("pp_size", pp)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise Refused(f"{path}: mapping.{key} is {size!r}, expected a number from 1")
    wanted = trtllm.ranks(config, trtllm.Mapping(tp, pp))
    if named != wanted or any(type(size) is not int for size in named.values()):
        raise Refused(f"{path}: mapping is {named}, expected {wanted}; build it again")
    axis = document.get("embedding_sharding_dim")
    if axis not in (0, 1) or not isinstance(document.get("use_parallel_embedding"), bool):
        raise Refused(f"{path}: embedding_sharding_dim is {axis!r}, expected 0 or 1")
    embedding = ("rows", "columns")[axis] if document["use_parallel_embedding"] else "whole"
    return trtllm.Mapping(tp, pp, embedding)


def _rank(path: Path, wanted: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    found = read_header(path, FLOATS | QUANTISED)
    if odd := sorted(set(found) ^ set(wanted)):
        what = "is not expected" if odd[0] in found else "is missing, expected"
        raise Refused(f"{path}: tensor {odd[0]} {what} by config.json")
    for name, (dtype, shape) in wanted.items():
        tensor = found[name]
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise Refused(
                f"{path}: tensor {name} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} "
                f"{list(shape)} by config.json"
            )
    return found
