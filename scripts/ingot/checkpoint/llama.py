"""How a Llama or Mistral checkpoint becomes GGUF: names, shapes, types, metadata.

Everything here follows from config.json alone, so that a program can be exported without weights.
Reference: llama.cpp's converter (conversion/llama.py of the commit in envs/llamacpp).
"""

import math
import struct
from dataclasses import dataclass
from math import prod
from typing import Any

from ingot.checkpoint.config import ModelConfig
from ingot.gguf.file import KV, TYPES, TensorType

FILE_TYPE = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # dtype -> general.file_type
DROPPED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")

BLOCK = {  # in model.layers.N. -> in blk.N.
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class Plan:
    """One tensor: `source` in the checkpoint (None: computed), `name` and `type` in GGUF.

    `heads` is set for q and k, whose rows are reordered head by head (rotate-half to interleaved).
    """

    source: str | None
    name: str
    shape: tuple[int, ...]  # row-major: [out, in]
    type: TensorType
    heads: int | None = None


def plans(config: ModelConfig, dtype: str) -> list[Plan]:
    """Every tensor of the model at `dtype`, in the order of config, not of any file."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes = {
        "attn_norm": (c.hidden,),
        "attn_q": (q, c.hidden),
        "attn_k": (kv, c.hidden),
        "attn_v": (kv, c.hidden),
        "attn_output": (c.hidden, q),
        "ffn_norm": (c.hidden,),
        "ffn_gate": (c.ffn, c.hidden),
        "ffn_up": (c.ffn, c.hidden),
        "ffn_down": (c.hidden, c.ffn),
    }
    heads = {"attn_q": c.heads, "attn_k": c.kv_heads}
    found = []
    if c.rope:
        found.append(Plan(None, "rope_freqs.weight", (c.head_dim // 2,), TYPES["F32"]))

    def add(source: str, name: str, shape: tuple[int, ...], heads: int | None = None) -> None:
        found.append(Plan(f"{source}.weight", f"{name}.weight", shape, kind(shape, dtype), heads))

    add("model.embed_tokens", "token_embd", (c.vocab, c.hidden))
    for block in range(c.layers):
        for source, name in BLOCK.items():
            place = f"model.layers.{block}.{source}"
            add(place, f"blk.{block}.{name}", shapes[name], heads.get(name))
    add("model.norm", "output_norm", (c.hidden,))
    if not c.tied:
        add("lm_head", "output", (c.vocab, c.hidden))
    return found


def kind(shape: tuple[int, ...], dtype: str) -> TensorType:
    """Norms stay F32; a row that q8_0's blocks of 32 don't divide falls back to F16."""
    if len(shape) == 1:
        return TYPES["F32"]
    wanted = TYPES[dtype.upper()]
    return TYPES["F16"] if shape[-1] % wanted.block else wanted


def rope_freqs(config: ModelConfig) -> bytes:
    """The divisor of each rope frequency, float32 [head_dim / 2] (the llama3 formula).

    Rounded step by step as the reference's torch does, in which a / x is (1 / x) * a: the last bits
    are part of the file.  numpy's own float32 power would give other bits on other processors.
    """
    rope, dim, factors = config.rope, config.head_dim, []
    low, high = rope.low_freq_factor, rope.high_freq_factor

    def divided(value: float, by: float) -> float:
        return f32(f32(1 / by) * f32(value))

    for i in range(0, dim, 2):
        wavelength = divided(2 * math.pi, divided(1, f32(config.rope_theta ** f32(i / dim))))
        if wavelength < rope.original_context / high:
            factors.append(1.0)
        elif wavelength > rope.original_context / low:
            factors.append(rope.factor)
        else:
            turns = divided(rope.original_context, wavelength)
            smooth = f32(f32(turns - low) / f32(high - low))
            factors.append(divided(1, f32(f32(f32(1 - smooth) / rope.factor) + smooth)))
    return struct.pack(f"<{len(factors)}f", *factors)


def f32(value: float) -> float:
    """`value` as a GGUF file stores it: an epsilon of 1e-5 becomes 9.999999747378752e-06."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def hyperparameters(config: ModelConfig, dtype: str) -> list[KV]:
    """The `llama.*` pairs, in the order that the reference writes."""
    c = config
    return [
        KV("llama.block_count", "u32", c.layers),
        KV("llama.context_length", "u32", c.context),
        KV("llama.embedding_length", "u32", c.hidden),
        KV("llama.feed_forward_length", "u32", c.ffn),
        KV("llama.attention.head_count", "u32", c.heads),
        KV("llama.attention.head_count_kv", "u32", c.kv_heads),
        KV("llama.rope.freq_base", "f32", c.rope_theta),
        KV("llama.attention.layer_norm_rms_epsilon", "f32", c.rms_eps),
        KV("llama.attention.key_length", "u32", c.head_dim),
        KV("llama.attention.value_length", "u32", c.head_dim),
        KV("general.file_type", "u32", FILE_TYPE[dtype]),
        KV("llama.vocab_size", "u32", c.vocab),
        KV("llama.rope.dimension_count", "u32", c.head_dim),
        KV("general.quantization_version", "u32", 2),
    ]


def properties(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """What an IRPA archive's properties say of the program: all but the tokenizer."""
    pairs = {
        kv.key: f32(kv.value) if kv.kind == "f32" else kv.value
        for kv in hyperparameters(config, dtype)
    }
    return {"schema": "GGUF", "general.architecture": "llama", **pairs}


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


def general(
    config: ModelConfig, dtype: str, name: str, licence: str | None, generation: dict
) -> list[KV]:
    """The `general.*` pairs.  `name` and `licence` come from the catalogue, never from a path."""
    parameters = sum(prod(plan.shape) for plan in plans(config, dtype))
    kvs = [KV("general.architecture", "str", "llama"), KV("general.type", "str", "model")]
    for key, (word, code) in SAMPLING.items():
        if generation.get(key) is not None:
            kvs.append(KV(f"general.sampling.{word}", code, generation[key]))
    kvs.append(KV("general.name", "str", name))
    kvs.append(KV("general.size_label", "str", size_label(parameters)))
    return kvs + ([KV("general.license", "str", licence)] if licence else [])


def size_label(parameters: int) -> str:
    """1500000 -> 1.5M: at least two digits, as llama.cpp writes it."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (0, "K")):
        if parameters > limit:
            scaled = parameters * {"T": 1e-12, "B": 1e-9, "M": 1e-6, "K": 1e-3}[unit]
            digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
            return f"{scaled:.{digits}f}{unit}"
    return "0K"
