"""The tensors of a model: names, shapes and dtypes, in its checkpoint and in GGUF, by its family's table.

Everything here follows from config.json alone, so that a program can be exported without weights.
Reference: llama.cpp's converter (conversion/llama.py of the commit in envs/llamacpp).
"""

import functools
import math
import struct
from dataclasses import dataclass

from ingot.model.config import ModelConfig
from ingot.model.families.family import Stack
from ingot.model.layers import MXFP4_BLOCK
from ingot.model.rope import Llama3Rope, LongRope
from ingot.model.tensors.dtypes import TYPES, TensorType

DROPPED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class HeadRows:
    """Of the `every` rows that each head has of a weight, those from `first` on; turned or not."""

    first: int
    every: int
    turned: bool


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: `source` in the checkpoint (None: computed), `name` and `type` in GGUF.

    `heads` is set for q and k, whose rows are reordered head by head (rotate-half to interleaved).
    {} in `source` stands for each expert, of which the rows lie in GGUF one after the other.
    """

    source: str | None
    name: str
    shape: tuple[int, ...]  # row-major: [out, in]
    type: TensorType
    heads: int | None = None
    plus: float = 0.0  # added to each value, in float32
    stack: Stack | None = (
        None  # where `source` holds all experts, or their biases, of which it is a part
    )
    part: HeadRows | None = None  # where it is some rows of each head of `source`, [head, out, in]

    @property
    def sources(self) -> list[str]:
        """The tensors of the checkpoint that it is made of, in their order."""
        if self.source is None:
            return []
        if self.packed:
            return [f"{self.source}_blocks", f"{self.source}_scales"]
        return (
            [self.source.format(n) for n in range(self.shape[0])] if self.stacked else [self.source]
        )

    @property
    def packed(self) -> bool:
        """Is it made of blocks of codes, and of scales?"""
        return self.type.name == "MXFP4"

    @property
    def stacked(self) -> bool:
        return self.source is not None and "{}" in self.source

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Of each of its sources, which are of one shape but where they are packed."""
        if self.part:
            heads, *sides = self.shape
            return (heads * self.part.every, sides[0 if self.part.turned else 1])
        if not self.stack:
            return self.shape[1:] if self.stacked else self.shape
        count, rows, *columns = self.shape
        return (count, *columns, rows * self.stack.step)

    @property
    def source_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its sources, by name."""
        if not self.packed:
            return dict.fromkeys(self.sources, self.source_shape)
        count, columns, rows = self.source_shape
        scales = (count, rows, columns // MXFP4_BLOCK)
        return dict(zip(self.sources, ((*scales, MXFP4_BLOCK // 2), scales), strict=True))


def specs_of(config: ModelConfig, dtype: str) -> list[TensorSpec]:
    """Every tensor of the model at `dtype`, in the order of config, not of any file."""
    return [*_specs(config, dtype)]


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of every tensor that its checkpoint must have, by name."""
    found = (spec.source_shapes.items() for spec in _specs(config, "f16"))
    return {name: shape for one in found for name, shape in one}


# forecasts ask once a job: a sixth of the time of a dry run of all targets
@functools.lru_cache(512)
def _specs(config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
    c, found = config, []
    if isinstance(c.rope, Llama3Rope):
        found.append(TensorSpec(None, "rope_freqs.weight", (c.head_dim // 2,), TYPES["F32"]))
    if isinstance(c.rope, LongRope):
        names = ("rope_factors_long.weight", "rope_factors_short.weight")
        found += [TensorSpec(None, name, (c.rope_dim // 2,), TYPES["F32"]) for name in names]

    def add(
        source: str, name: str, shape: tuple[int, ...], heads=None, float32=False, end=".weight"
    ) -> None:
        kind = TYPES["F32"] if float32 else dtype_of(shape, dtype)
        plus = c.family.norm_plus if len(shape) == 1 else 0.0
        found.append(TensorSpec(f"{source}{end}", f"{name}{end}", shape, kind, heads, plus))

    add("model.embed_tokens", "token_embd", (c.vocab, c.hidden))
    for block in range(c.layers):
        sizes = sizes_of(c, block)
        for source, one in c.family.layer.items():
            place, name = f"model.layers.{block}.{source}", f"blk.{block}.{one.gguf}"
            shape = tuple(sizes[size] for size in one.shape)
            if not all(shape):
                continue
            if c.experts and "{}" in source:
                shape = (c.experts.count, *shape)
            heads = getattr(c, one.heads) if one.heads else None
            add(place, name, shape, heads, one.float32, "" if one.whole else ".weight")
            if one.bias and getattr(c, one.bias):
                bias = (f"{place}.bias", f"{name}.bias", shape[:1], TYPES["F32"])
                found.append(TensorSpec(*bias, heads))
        for source, stack in c.family.stacks:
            place, name = f"model.layers.{block}.{source}", f"blk.{block}.{stack.gguf}"
            shape = (c.experts.count, *(sizes[size] for size in stack.shape))
            kind = TYPES["MXFP4"] if c.packed else dtype_of(shape, dtype)
            found.append(TensorSpec(place, f"{name}.weight", shape, kind, stack=stack))
            bias = (f"{place}_bias", f"{name}.bias", shape[:2], TYPES["F32"])
            found.append(TensorSpec(*bias, stack=stack))
        for source, part in c.family.parts:
            shape = (c.heads, *(sizes[size] for size in part.shape))
            first, every = (
                sum(sizes[size] for size in words) for words in (part.first, part.every)
            )
            kind, rows = dtype_of(shape, dtype), HeadRows(first, every, part.turned)
            place, name = f"model.layers.{block}.{source}.weight", f"blk.{block}.{part.gguf}.weight"
            found.append(TensorSpec(place, name, shape, kind, part=rows))
    add("model.norm", "output_norm", (c.hidden,))
    if not c.tied:
        add("lm_head", "output", (c.vocab, c.hidden))
    return tuple(found)


def sizes_of(config: ModelConfig, layer: int = -1) -> dict[str, int]:
    """What the words of a family's shapes are of a layer of this model, or of one that has experts."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    found = {
        "hidden": c.hidden, "ffn": c.ffn, "head": c.head_dim, "q": q, "kv": kv, "qkv": q + 2 * kv,
        "gate_up": 2 * c.ffn, "heads": c.heads,
        "experts": c.experts.count if c.experts else 0, "expert": c.experts.ffn if c.experts else 0,
    }  # fmt: skip
    if c.experts and (router := c.experts.router):
        dense = 0 <= layer < router.dense
        found |= {"dense": c.ffn if dense else 0, "shared": router.shared * c.experts.ffn}
        if dense:
            found |= dict.fromkeys(("experts", "expert", "shared"), 0)
    if m := c.latent:
        found |= {
            "q_rank": m.q_rank or 0, "q_whole": 0 if m.q_rank else q, "qk": q if m.q_rank else 0,
            "kv_rank": m.kv_rank, "plain": m.plain, "value": m.value, "attended": c.heads * m.value,
            "kv_a": m.kept,
        }  # fmt: skip
    return found


@functools.lru_cache(512)
def parameters(config: ModelConfig) -> int:
    """How many weights the checkpoint holds."""
    return sum(math.prod(spec.shape) for spec in _specs(config, "f32") if spec.source)


def head_of_tied(config: ModelConfig, dtype: str) -> TensorSpec:
    """The output layer of a model whose embeddings are tied, for formats that want one of its own."""
    shape = (config.vocab, config.hidden)
    return TensorSpec(EMBEDDING, "output.weight", shape, dtype_of(shape, dtype))


def dtype_of(shape: tuple[int, ...], dtype: str) -> TensorType:
    """Norms stay F32; a row that q8_0's blocks of 32 don't divide falls back to F16."""
    if len(shape) == 1:
        return TYPES["F32"]
    wanted = TYPES[dtype.upper()]
    return TYPES["F16"] if shape[-1] % wanted.block else wanted


def computed(config: ModelConfig, name: str) -> list[float]:
    """The values of a tensor of GGUF that the checkpoint lacks, float32."""
    if isinstance(config.rope, LongRope):
        return [*(config.rope.long if name == "rope_factors_long.weight" else config.rope.short)]
    return rope_freqs(config)


def rope_freqs(config: ModelConfig) -> list[float]:
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
    return factors


def f32(value: float) -> float:
    """`value` as a GGUF file stores it: an epsilon of 1e-5 becomes 9.999999747378752e-06."""
    return struct.unpack("<f", struct.pack("<f", value))[0]
