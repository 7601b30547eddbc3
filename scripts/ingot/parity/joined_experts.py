"""The experts of a layer that lie in one tensor, as gpt-oss has them, written without the writer's code.

Verification only: by transformers' modeling_gpt_oss.py, and OCP's microscaling formats 1.0 for MXFP4.
"""

import re
from dataclasses import dataclass

import numpy as np

from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor, read_checkpoint
from ingot.model.tensors.dtypes import FLOATS, STORED
from ingot.parity.made import Made

NAMED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(|_bias|_blocks)")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])  # the fourth bit is the sign


@dataclass(frozen=True, eq=False)
class Joined(Made):
    """A part of such a tensor: `shape` is [experts * outputs, inputs], of biases [experts, outputs]."""

    whole: tuple[int, ...]  # its shape in GGUF
    every: slice  # of the outputs that the tensor has, those that are its own
    scales: Tensor | None = None

    @property
    def beside(self) -> list[Tensor]:
        return [self.scales] if self.scales else []

    def floats(self, first: int, last: int) -> np.ndarray:
        """Rows first..last, float32."""
        if self.scales:
            return self._decoded(first, last)
        stored = np.memmap(self.path, FLOATS[self.dtype].numpy, "r", self.offset, self._size())
        if len(self.whole) == 2:
            return _wide(stored[first:last, self.every], self.dtype)
        outputs, rows = self.whole[1], []
        for expert in range(first // outputs, -(-last // outputs)):
            at = expert * outputs
            mine = stored[expert][:, self.every]
            rows.append(mine[:, max(first - at, 0) : last - at].T)
        return _wide(np.concatenate(rows), self.dtype)

    def _size(self) -> tuple[int, ...]:
        count, outputs, *inputs = self.whole
        return (count, *inputs, outputs * (self.every.step or 1))

    def _decoded(self, first: int, last: int) -> np.ndarray:
        step, blocks = self.every.step or 1, self.whole[2] // 32
        rows = slice(first * step + (self.every.start or 0), last * step, step)
        bytes_of = {}
        for one, width in ((self, blocks * 16), (self.scales, blocks)):
            shape = (self.shape[0] * step, width)
            bytes_of[one.name] = np.memmap(one.path, np.uint8, "r", one.offset, shape)[rows]
        codes = bytes_of[self.name]
        both = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1)
        powers = bytes_of[self.scales.name].astype(np.int32) - 127
        found = np.ldexp(both.reshape(len(codes), blocks, 32), powers[..., None])
        return found.reshape(len(codes), -1).astype(np.float32)


def _wide(stored: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def sources(checkpoint: Checkpoint) -> dict[str, Joined]:
    """By the names of GGUF's tensors; none of another family."""
    tensors = read_checkpoint(checkpoint, STORED, merges=True)
    found = {}
    for name, one in tensors.items():
        if not (named := NAMED.fullmatch(name)):
            continue
        layer, which, kind = named.groups()
        parts = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
        for part, every in (parts if which == "gate_up" else {"down": slice(None)}).items():
            count, scales, end = one.shape[0], None, "weight"
            if kind == "_bias":
                inputs, outputs, end = (), one.shape[1], "bias"
            elif kind == "_blocks":
                inputs, outputs = (32 * one.shape[2],), one.shape[1]
                scales = tensors[name.replace("_blocks", "_scales")]
            else:
                inputs, outputs = one.shape[1:2], one.shape[2]
            whole = (count, outputs // (every.step or 1), *inputs)
            rows = (count * whole[1], *inputs) if inputs else whole
            place = (one.name, one.dtype, rows, one.path, one.offset, one.nbytes)
            found[f"blk.{layer}.ffn_{part}_exps.{end}"] = Joined(*place, whole, every, scales)
    return found
