"""The metadata of a GGUF file: key/value pairs that follow from config.json and the catalogue.

Reference: llama.cpp's converter (conversion/llama.py of the commit in envs/llamacpp).
"""

from math import prod
from typing import Any

from ingot.base.fields import Number, Whole
from ingot.formats.gguf.kv import KV
from ingot.model.config import ModelConfig
from ingot.model.layers import Router
from ingot.model.rope import LinearRope, LongRope, YarnRope
from ingot.model.specs import f32, specs_of

CAN = ("attention_bias", "mlp_bias", "own_gguf", "qkv_bias", "qk_norm", "linear", "yarn", "experts",
       "rope_skips", "windows", "scales", "norms_behind", "joined", "longrope", "part_rope", "sinks",
       "mxfp4", "fp8", "latent")  # fmt: skip
SCORES = {"softmax": 1, "sigmoid": 2}  # a router's -> expert_gating_func
FILE_TYPE = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # dtype -> general.file_type
PACKED = 38  # that of floats with MXFP4 experts


def hyperparameters(config: ModelConfig, dtype: str) -> list[KV]:
    """The pairs of the family's own keys, in the order that the reference writes."""
    c, name = config, config.family.gguf
    names_head = c.says_head_dim or c.family.names_head_dim
    head_dim = c.head_dim if names_head else None
    counts: dict[str, int | None] = {
        "block_count": c.layers,
        "context_length": c.context,
        "embedding_length": c.hidden,
        "feed_forward_length": c.ffn,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "expert_count": c.experts.count if c.experts else None,
        "expert_used_count": c.experts.used if c.experts else None,
        "expert_feed_forward_length": c.experts.ffn if c.experts else None,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.sliding_window": c.sliding.window if c.sliding else c.window or 0,
        "rope.scaling.original_context_length": c.original_context,
        "vocab_size": c.vocab,
        "rope.dimension_count": c.rope_dim,
    }
    numbers: dict[str, float | None] = {
        "rope.freq_base": c.rope_theta,
        "rope.freq_base_swa": c.sliding.theta if c.sliding else None,
        "attention.layer_norm_rms_epsilon": c.rms_eps,
        **dict(c.scales),
    }
    found = {key: [KV(f"{name}.{key}", "u32", n)] for key, n in counts.items() if n is not None}
    found |= {key: [KV(f"{name}.{key}", "f32", n)] for key, n in numbers.items() if n is not None}
    found["rope.scaling"] = scaling(f"{name}.rope.scaling", c.rope)
    if c.experts and c.experts.router:
        found |= _routed(name, c.experts.router)
    if c.latent:
        found |= _latent(name, c)
    found["general.file_type"] = [KV("general.file_type", "u32", file_type(c, dtype))]
    found["general.quantization_version"] = [KV("general.quantization_version", "u32", 2)]
    keys = [*c.family.gguf_keys]
    if c.latent and c.says_head_dim:  # then its converter writes them twice, first there
        both = ("attention.key_length", "attention.value_length")
        keys = [key for key in keys if key not in both]
        at = keys.index("general.file_type")
        keys[at:at] = both
    return [kv for key in keys for kv in found.get(key, ())]


def _routed(name: str, router: Router) -> dict[str, list[KV]]:
    """How a router chooses and weighs, as far as config.json says it."""
    pairs = {
        "expert_group_count": ("u32", router.groups),
        "expert_group_used_count": ("u32", router.groups_used),
        "expert_gating_func": ("u32", SCORES[router.scores] if router.scores else None),
        "leading_dense_block_count": ("u32", router.dense),
        "expert_shared_count": ("u32", router.shared),
        "expert_weights_scale": ("f32", router.scale),
        "expert_weights_norm": ("bool", router.normed or None),
    }
    return {
        key: [KV(f"{name}.{key}", kind, value)]
        for key, (kind, value) in pairs.items()
        if value is not None
    }


def _latent(name: str, config: ModelConfig) -> dict[str, list[KV]]:
    """Of heads that share a latent: to libllama one head of keys and values, as long as that is."""
    c, m = config, config.latent
    counts = {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": m.q_rank,
        "attention.kv_lora_rank": m.kv_rank,
        "attention.key_length": m.kept,
        "attention.value_length": m.kv_rank,
        "attention.key_length_mla": m.plain + m.turned,
        "attention.value_length_mla": m.value,
    }
    found = {key: [KV(f"{name}.{key}", "u32", n)] for key, n in counts.items() if n is not None}
    key = "rope.scaling.yarn_log_multiplier"
    if isinstance(c.rope, YarnRope) and c.rope.scores:
        found[key] = [KV(f"{name}.{key}", "f32", 0.1 * c.rope.scores)]
    return found


def file_type(config: ModelConfig, dtype: str) -> int:
    return PACKED if config.packed and dtype != "q8_0" else FILE_TYPE[dtype]


def scaling(place: str, rope) -> list[KV]:
    """What a scaling is in keys; Llama 3.1's is a tensor."""
    if isinstance(rope, LinearRope):
        return [KV(f"{place}.type", "str", "linear"), KV(f"{place}.factor", "f32", rope.factor)]
    if not isinstance(rope, YarnRope):
        return []
    more = {
        "yarn_attn_factor": rope.attention_factor,
        "yarn_beta_fast": rope.beta_fast,
        "yarn_beta_slow": rope.beta_slow,
    }
    return [
        KV(f"{place}.type", "str", "yarn"),
        KV(f"{place}.factor", "f32", rope.factor),
        KV(f"{place}.original_context_length", "u32", rope.original_context),
        *(KV(f"{place}.{key}", "f32", value) for key, value in more.items() if value is not None),
    ]


def properties(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """What an IRPA archive's properties say of the program: all but the tokenizer."""
    pairs = {
        kv.key: f32(kv.value) if kv.kind == "f32" else kv.value
        for kv in hyperparameters(config, dtype)
    }
    return {"schema": "GGUF", "general.architecture": config.family.gguf, **pairs}


SAMPLING = {  # in generation_config.json -> after general.sampling., type; in the order written
    "sequence": ("sequence", "str"),
    "top_k": ("top_k", "i32"),
    "top_p": ("top_p", "f32"),
    "min_p": ("min_p", "f32"),
    "xtc_probability": ("xtc_probability", "f32"),
    "xtc_threshold": ("xtc_threshold", "f32"),
    "temperature": ("temp", "f32"),
    "penalty_last_n": ("penalty_last_n", "i32"),
    "repetition_penalty": ("penalty_repeat", "f32"),
    "mirostat": ("mirostat", "i32"),
    "mirostat_tau": ("mirostat_tau", "f32"),
    "mirostat_eta": ("mirostat_eta", "f32"),
}

KINDS = {"str": str, "i32": Whole(-(2**31)), "f32": Number()}
GENERATION = {f"{key}?": (KINDS[code], None) for key, (_, code) in SAMPLING.items()}


def general(
    config: ModelConfig, dtype: str, name: str, license: str | None, generation: dict
) -> list[KV]:
    """The `general.*` pairs.  `name` and `license` come from the catalogue, never from a path."""
    specs = specs_of(config, dtype)
    # of experts one
    parameters = sum(prod(one.shape[-2:] if "_exps" in one.name else one.shape) for one in specs)
    counted = f"{config.experts.count}x" if config.experts else ""
    kvs = [
        KV("general.architecture", "str", config.family.gguf),
        KV("general.type", "str", "model"),
    ]
    if isinstance(
        config.rope, LongRope
    ):  # as its converter does, before all that it knows of a model
        place = f"{config.family.gguf}.rope.scaling.attn_factor"
        kvs.insert(1, KV(place, "f32", config.rope.attention_factor))
    for key, (word, code) in SAMPLING.items():
        if generation.get(key) is not None:
            kvs.append(KV(f"general.sampling.{word}", code, generation[key]))
    kvs.append(KV("general.name", "str", name))
    kvs.append(KV("general.size_label", "str", f"{counted}{size_label(parameters)}"))
    return kvs + ([KV("general.license", "str", license)] if license else [])


def size_label(parameters: int) -> str:
    """1500000 -> 1.5M: at least two digits, as llama.cpp writes it."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (0, "K")):
        if parameters > limit:
            scaled = parameters * {"T": 1e-12, "B": 1e-9, "M": 1e-6, "K": 1e-3}[unit]
            digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
            return f"{scaled:.{digits}f}{unit}"
    return "0K"
