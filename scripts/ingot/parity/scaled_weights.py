"""FP8 weights with a scale for each block, and rows of heads of them, written without the writer's code.

Verification only: by transformers' integrations/finegrained_fp8.py and modeling_deepseek_v3.py, and OCP's
8-bit floating point formats 1.0.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.made import Made


def _e4m3() -> np.ndarray:
    """The values of the 256 bytes: 4 bits of exponent, 3 of mantissa, no infinity (OCP OFP8 1.0)."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    size[(byte & 127) == 127] = np.nan
    return np.where(byte & 128, -size, size).astype(np.float32)


E4M3 = _e4m3()
LATENT = re.compile(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight")


@dataclass(frozen=True, eq=False)
class Scaled(Made):
    """Codes of E4M3, and the scales of their blocks."""

    scales: Tensor
    block: tuple[int, int]

    @property
    def beside(self) -> list[Tensor]:
        return [self.scales]

    def floats(self, first: int, last: int) -> np.ndarray:
        rows = np.arange(first, last) // self.block[0]
        codes = np.memmap(self.path, np.uint8, "r", self.offset, self.shape)[first:last]
        kind = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16}[self.scales.dtype]
        one = self.scales
        stored = np.memmap(one.path, kind, "r", one.offset, one.shape)
        if one.dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        each = stored[rows].astype(np.float32).repeat(self.block[1], axis=1)
        return E4M3.take(codes) * each[:, : self.shape[1]]


@dataclass(frozen=True, eq=False)
class OfHeads(Made):
    """Some rows of each head of a weight, as [heads * out, in]; `turned`: in the checkpoint [in, out]."""

    whole: tuple[int, ...]  # its shape in GGUF
    source: Tensor
    values: Callable  # (tensor, first row, last) as float32
    rows: range  # of each head's
    every: int
    turned: bool

    @property
    def beside(self) -> list[Tensor]:
        return self.source.beside if isinstance(self.source, Made) else []

    def floats(self, first: int, last: int) -> np.ndarray:
        out, found = self.whole[1], []
        for head in range(first // out, -(-last // out)):
            at = head * self.every
            mine = self.values(self.source, at + self.rows.start, at + self.rows.stop)
            mine = mine.T if self.turned else mine
            found.append(mine[max(first - head * out, 0) : last - head * out])
        return np.concatenate(found)


def scaled(checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, those of FP8 as Scaled; their scales are not among them."""
    if not any(one.dtype == "F8_E4M3" for one in tensors.values()):
        return tensors
    path = checkpoint["config.json"]
    said = json.loads(path.read_bytes()).get("quantization_config") or {}
    found = {}
    for name, one in tensors.items():
        if one.dtype == "F8_E4M3":
            place = (one.name, one.dtype, one.shape, one.path, one.offset, one.nbytes)
            scales, block = tensors.get(f"{name}_scale_inv"), said.get("weight_block_size")
            if not scales or scales.dtype == one.dtype or not block:
                raise Refused(
                    f"{one.path}: tensor {name} is FP8, expected a float {name}_scale_inv beside it, and "
                    f"weight_block_size in {path}"
                )
            found[name] = Scaled(*place, scales, tuple(block))
        elif not name.endswith("_scale_inv"):
            found[name] = one
    return found


def of_heads(
    checkpoint: Checkpoint, tensors: dict[str, Tensor], values: Callable
) -> dict[str, OfHeads]:
    """By the names of GGUF's tensors: the keys' and the values' rows of what a latent is made into.

    values(tensor, first row, last) gives float32.
    """
    said = json.loads(checkpoint["config.json"].read_bytes())
    found = {}
    for name, one in tensors.items():
        if not (named := LATENT.fullmatch(name)):
            continue
        plain, value = said["qk_nope_head_dim"], said["v_head_dim"]
        heads, rank = said["num_attention_heads"], one.shape[1]
        place = (one.name, one.dtype)
        for part, rows, whole in (
            ("k", range(plain), (heads, rank, plain)),
            ("v", range(plain, plain + value), (heads, value, rank)),
        ):
            shape = (whole[0] * whole[1], whole[2])
            rest = (shape, one.path, one.offset, one.nbytes, whole, one, values, rows)
            found[f"blk.{named[1]}.attn_{part}_b.weight"] = OfHeads(
                *place, *rest, plain + value, turned=part == "k"
            )
    return found
