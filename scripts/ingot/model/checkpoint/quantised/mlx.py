"""A checkpoint as MLX has it: codes of 4 or 8 bits in groups, embeddings and head too, experts stacked.

The bytes are those of mlx_lm.convert on a CPU; on an Apple GPU it rounds halves away from zero, so that
some codes differ.
Source: mlx 0.32.4, backend/cpu/quantized.cpp; mlx-lm 0.32.2, convert.py, utils.py and models/.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base import stream
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model import features
from ingot.model.checkpoint.quantised import blocks
from ingot.model.checkpoint.quantised.blocks import Part, Shape
from ingot.model.checkpoint.quantised.codes import as_stored, rounded
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import file_layout
from ingot.model.config import ModelConfig
from ingot.model.families.family import Family
from ingot.model.specs import specs_of
from ingot.model.tensors import few_bits
from ingot.model.tensors.dtypes import FLOATS

GROUP = 64  # columns that share a scale and a bias
SHARD = 5 << 30  # bytes of a file at most
CAN = tuple(  # of features.FEATURES: what mlx-lm's classes of the families in the table can
    word
    for word in (*features.ALL, features.ADAPTER)
    # of LongRoPE its class takes the long factors for texts of any length
    if word
    not in ("no_table", "yarn", "attention_bias", "longrope", "sinks", "mxfp4", "fp8", "latent")
)
BITS = {"": 0, "4bit": 4, "8bit": 8}
# layers that mlx-lm's class of a family gives eight bits, whatever the others have
EIGHT_BITS = {
    "Qwen3MoeForCausalLM": re.compile(r".*\.mlp\.gate"),
    "GraniteForCausalLM": re.compile(r".*\.(self_attn\.o_proj|mlp\.down_proj)|lm_head"),
}
WINDOWLESS = ("Gemma2ForCausalLM",)
EXPERTS = re.compile(r"experts\.\{\}\.(\w+)\.weight")
STACKED = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # Mixtral's words
LEAST = np.float32(1e-7)  # of a scale


@dataclass(frozen=True)
class Tensor:
    """One of the new checkpoint: `bits` 0 as it is, else as codes."""

    name: str
    sources: str  # {} stands for each expert
    shape: Shape
    dtype: str  # of the checkpoint
    bits: int

    @property
    def parts(self) -> list[Part]:
        if not self.bits:
            return [(self.name, self.dtype, self.shape)]
        stem, (*rows, columns) = self.name.removesuffix("weight"), self.shape
        groups = (*rows, columns // GROUP)
        return [
            (f"{stem}weight", "U32", (*rows, columns * self.bits // 32)),
            (f"{stem}scales", self.dtype, groups),
            (f"{stem}biases", self.dtype, groups),
        ]

    @property
    def nbytes(self) -> int:
        return sum(map(blocks.nbytes, self.parts))


def tensors(config: ModelConfig, bits: int, dtype: Callable[[str], str]) -> list[Tensor]:
    """What the new checkpoint holds, in the order of the computation; `dtype` by a source's name."""
    found = []
    for spec in specs_of(config, "f16"):
        if spec.source is None:
            continue
        name = EXPERTS.sub(
            lambda word: f"switch_mlp.{STACKED.get(word[1], word[1])}.weight", spec.source
        )
        matrix = spec.source.endswith(".weight") and len(spec.shape) > 1
        mine = bits if matrix and spec.shape[-1] % GROUP == 0 else 0
        if mine and in_eight_bits(config, name):
            mine = 8
        found.append(Tensor(name, spec.source, spec.shape, dtype(spec.sources[0]), mine))
    return found


def dtype_of(config: Path) -> str | None:
    """What mlx-lm's converter casts all tensors to, by config.json; None: each stays as it is stored."""
    word = str(read_json(config).get("torch_dtype"))
    return next((name for name, one in FLOATS.items() if one.torch == word), None)


def in_eight_bits(config: ModelConfig, name: str) -> bool:
    """Has this weight as many, whatever the others have?"""
    said = EIGHT_BITS.get(config.architecture)
    return bool(said and said.fullmatch(name.removesuffix(".weight")))


def why_not(family: Family) -> str | None:
    """Why mlx-lm cannot have it, or None."""
    if family.inner:
        return "mlx-lm's class of it is for text alone, expected a model without images"
    if family.architecture in WINDOWLESS:
        return "mlx-lm's class of it knows no window, beyond which it is another model"
    return None


def codes(values: np.ndarray, bits: int, dtype: str, cast: bool) -> tuple[np.ndarray, ...]:
    """Words of codes uint32 [n, in * bits / 32]; scales and biases, as bytes of `dtype`; of float32 rows.

    `cast`: are the rows no values of `dtype` yet?
    The largest or the smallest value of a group, whichever is farther from 0, is a code's exact value.
    """
    groups = (rounded(values, dtype) if cast else values).reshape(-1, GROUP)
    if cast and not np.isfinite(groups).all():
        raise Refused(
            f"a value of {np.abs(values).max():.3g}, expected at most 65504 in float16, which "
            "config.json says; say another torch_dtype"
        )
    across = groups.T.copy()  # numpy is slow along a short last axis
    most, least = across.max(axis=0), across.min(axis=0)
    last = np.float32(2**bits - 1)
    low = np.abs(least) > np.abs(most)
    scales = np.maximum((most - least) / last, LEAST)
    scales = np.where(low, scales, -scales)
    edge = np.where(low, least, most)
    steps = np.rint(edge / scales)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.where(steps != 0, edge / steps, scales)
    biases = np.where(steps != 0, edge, np.float32(0))
    found = groups - biases[:, None]
    found /= scales[:, None]
    np.rint(found, out=found)
    np.clip(found, 0, last, out=found)
    numbers = found.astype(np.uint8).reshape(len(values), -1)
    if bits == 4:
        numbers = few_bits.pairs(numbers)
    return numbers.view("<u4"), as_stored(scales, dtype), as_stored(biases, dtype)


def shards(found: list[Tensor]) -> dict[str, list[Tensor]]:
    """By file name, each of at most SHARD bytes."""
    parts: list[list[Tensor]] = [[]]
    size = 0
    for one in found:
        if parts[-1] and size + one.nbytes > SHARD:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += one.nbytes
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    count = len(parts)
    return {f"model-{n:05d}-of-{count:05d}.safetensors": one for n, one in enumerate(parts, 1)}


def write(rows: Rows, files: dict[str, list[Tensor]], folder: Path, final: Path) -> dict[str, str]:
    """The shards in `folder`, which will be named `final`; the SHA-256 of each by its name."""
    with blocks.outputs(layouts(files), folder, final) as (outs, places):
        turns = [rows.turns, *(out.turns for out in outs.values())]
        for _ in rows.passes(*outs.values()):
            stream.in_threads(_jobs(rows, files, outs, places), turns)
        return {name: out.finish() for name, out in outs.items()}


def layouts(files: dict[str, list[Tensor]]) -> dict[str, Any]:
    return {
        name: file_layout(
            {part: (dtype, shape) for one in held for part, dtype, shape in one.parts},
            {"format": "mlx"},
        )
        for name, held in files.items()
    }


def _jobs(rows: Rows, files: dict[str, list[Tensor]], outs, places) -> blocks.Jobs:
    for shard, held in files.items():
        for one in held:
            place = places[shard][one.parts[0][0]]
            if one.bits:
                spec = blocks.spec_of(one.sources, one.shape)
                cast = any(rows.tensors[name].dtype != one.dtype for name in spec.sources)
                code = functools.partial(codes, bits=one.bits, dtype=one.dtype, cast=cast)
                yield from blocks.coded(rows, spec, outs[shard], one.parts, place, code)
            else:
                spec = blocks.spec_of(one.sources, one.shape, one.dtype)
                yield from blocks.copied(rows, spec, outs[shard], place)
