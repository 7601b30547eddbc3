"""A base's rows with what an adapter adds to them, while they are read.

A merged value is W + scale * sum(B * A), rounded once to the dtype of W: the nearest to the exact sum,
whatever machine adds, in whatever order.  (PEFT's own depends on the order in which a library sums: of
millions of values a few are the neighbour of this one.)
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ingot.base.refused import Refused
from ingot.model.checkpoint.adapter import Lora
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.cast import as_float32
from ingot.model.tensors.dtypes import FLOATS

ERROR = 2.0**-52  # of a float64, and what a sum of several may be off by, for each of them
TIE = 0x80000000  # the low half, moved up, of a float32 midway between two values of bfloat16


class Factors(NamedTuple):
    """A pair in float64: weight [n, in] += scaled [n, r] @ columns [r, in]."""

    scaled: np.ndarray
    columns: np.ndarray
    away: float  # what a sum of it may be off by, in whatever order it is added


@functools.lru_cache(maxsize=4)  # the tensors that threads are at
def _factors(lora: Lora) -> Factors:
    rows, columns = _matrices(lora)
    scaled = np.ascontiguousarray(rows * lora.scale)
    largest = np.abs(scaled).sum(axis=1).max() * np.abs(columns).max()
    return Factors(scaled, np.ascontiguousarray(columns), float(largest) * ERROR * (lora.rank + 3))


def _matrices(lora: Lora) -> tuple[np.ndarray, np.ndarray]:
    one, other = (_values(tensor) for tensor in (lora.b, lora.a))
    return (other.T, one.T) if lora.embedding else (one, other)


def _values(tensor: Tensor) -> np.ndarray:
    bits = np.fromfile(
        tensor.path, FLOATS[tensor.dtype].bits, math.prod(tensor.shape), offset=tensor.offset
    )
    found = as_float32(bits, tensor.dtype).reshape(tensor.shape).astype(np.float64)
    if not np.isfinite(found).all():
        raise Refused(f"{tensor.path}: tensor {tensor.name} holds NaN or infinity; it is damaged")
    return found


class Merger:
    """Merges blocks of rows; one a thread, since it owns its buffers.

    A result is overwritten by the next call.  It stays in the cache: PASS values at a time.
    """

    PASS = 1 << 15

    def __init__(self):
        self.buffers: dict[str, np.ndarray] = {}

    def __call__(self, lora: Lora, bits: np.ndarray, dtype: str, first: int) -> np.ndarray:
        """Rows of a weight [n, in] from row `first` on, as bits of `dtype`, merged, as the same."""
        out = self._buffer("merged", bits.size, bits.dtype.type).reshape(bits.shape)
        factors = _factors(lora)
        merge = self._bfloat16 if dtype == "BF16" else self._numpys
        step = max(1, self.PASS // bits.shape[1])
        for row in range(0, len(bits), step):
            part = slice(row, row + step)
            block = _Block(lora, bits[part], dtype, first + row, factors.away)
            sums = self._buffer("sums", block.bits.size, np.float64).reshape(block.bits.shape)
            rows = factors.scaled[block.first : block.first + len(block.bits)]
            merge(block, np.matmul(rows, factors.columns, out=sums), out[part])
        return out

    def _bfloat16(self, block: "_Block", sums: np.ndarray, out: np.ndarray) -> None:
        wide, low = (
            self._buffer(n, out.size, np.uint32).reshape(out.shape) for n in ("wide", "low")
        )
        near = wide.view(np.float32)
        np.left_shift(block.bits, 16, out=wide, dtype=np.uint32)
        sums += near
        np.copyto(near, sums, casting="same_kind")
        np.left_shift(wide, 16, out=low)
        ties, up = low == TIE, []  # in float32: in truth they may be none
        if ties.any():
            places = [divmod(int(n), out.shape[1]) for n in np.flatnonzero(ties)]
            up = [at for at in places if block.above(at, sums[at], float(near[at]))]
        wide += np.uint32(0x7FFF)
        for at in up:
            wide[at] += 1
        np.right_shift(wide, 16, out=out, casting="unsafe")

    def _numpys(self, block: "_Block", sums: np.ndarray, out: np.ndarray) -> None:
        """To float16 or float32."""
        kind = FLOATS[block.dtype]
        sums += as_float32(block.bits, block.dtype).reshape(out.shape)
        away = block.away + np.abs(sums) * ERROR
        with np.errstate(over="ignore"):
            low, high = (sums - away).astype(kind.numpy), (sums + away).astype(kind.numpy)
        for at in zip(*np.nonzero(low != high), strict=True):
            two, value = (low[at], high[at]), block.exact(at)
            middle = sum(Fraction(float(one)) for one in two) / 2
            even = next(one for one in two if not one.view(kind.bits) & 1)
            low[at] = even if value == middle else two[value > middle]
        out[:] = low.view(kind.bits)

    def _buffer(self, name: str, size: int, dtype: type) -> np.ndarray:
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = np.empty(size, dtype)
        return self.buffers[name][:size]


class _Block(NamedTuple):
    """Some rows of a weight, from row `first` on, and what is added to them."""

    lora: Lora
    bits: np.ndarray
    dtype: str
    first: int
    away: float

    def exact(self, at: tuple) -> Fraction:
        """The merged value, before it is rounded."""
        rows, columns = _matrices(self.lora)
        pairs = zip(rows[self.first + at[0]].tolist(), columns[:, at[1]].tolist(), strict=True)
        product = sum((Fraction(b) * Fraction(a) for b, a in pairs), Fraction(0))
        weight = as_float32(self.bits[at[0], at[1] : at[1] + 1], self.dtype)[0]
        return Fraction(float(weight)) + Fraction(self.lora.scale) * product

    def above(self, at: tuple, value: float, tie: float) -> bool:
        """Is a sum that float32 has at a tie of bfloat16 to be rounded away from zero?"""
        apart: float | Fraction = value - tie
        if abs(apart) <= self.away + abs(tie) * ERROR:
            apart = self.exact(at) - Fraction(tie)
        if not apart:  # to the even one
            return bool(np.float32(tie).view(np.uint32) >> 16 & 1)
        return (apart > 0) == (tie > 0)
