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
FAINT = 2.0**28  # times as much is a sum whose float32 is in doubt: the two all but cancel
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


@functools.lru_cache(maxsize=4)
def _matrices(lora: Lora) -> tuple[np.ndarray, np.ndarray]:
    one, other = (values(tensor).astype(np.float64) for tensor in (lora.b, lora.a))
    return (other.T, one.T) if lora.embedding else (one, other)


def values(tensor: Tensor) -> np.ndarray:
    """A matrix of an adapter's as float32.  Refused: one that is damaged."""
    bits = np.fromfile(
        tensor.path, FLOATS[tensor.dtype].bits, math.prod(tensor.shape), offset=tensor.offset
    )
    found = as_float32(bits, tensor.dtype).reshape(tensor.shape)
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
        odd = low == TIE  # in float32: in truth it may be none
        if faint := int(np.float32(block.away * FAINT).view(np.uint32)):
            np.left_shift(wide, 1, out=low)  # without the sign: in the order of magnitudes
            odd |= low < np.uint32(faint << 1)
        places = _places(odd)
        found = [_rounded(block.known(at, sums[at], near[at]), "BF16") for at in places]
        wide += np.uint32(0x7FFF)
        np.right_shift(wide, 16, out=out, casting="unsafe")
        for at, value in zip(places, found, strict=True):
            out[at] = value

    def _numpys(self, block: "_Block", sums: np.ndarray, out: np.ndarray) -> None:
        """To float16 or float32."""
        kind = FLOATS[block.dtype]
        sums += as_float32(block.bits, block.dtype).reshape(out.shape)
        away = block.away + np.abs(sums) * ERROR
        with np.errstate(over="ignore"):
            out[:] = sums.astype(kind.numpy).view(kind.bits)
            low, high = (sums - away).astype(kind.numpy), (sums + away).astype(kind.numpy)
        for at in _places(low != high):
            out[at] = _rounded(block.exact(at), block.dtype)

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

    def known(self, at: tuple, value: float, tie: float) -> Fraction:
        """What rounds as the merged value does: its sum, unless that is in doubt."""
        apart, large = abs(float(value) - float(tie)), abs(float(value))
        sure = apart > self.away + large * ERROR and large >= self.away * FAINT
        return Fraction(float(value)) if sure else self.exact(at)

    def exact(self, at: tuple) -> Fraction:
        """The merged value, before it is rounded."""
        rows, columns = _matrices(self.lora)
        pairs = zip(rows[self.first + at[0]].tolist(), columns[:, at[1]].tolist(), strict=True)
        product = sum((Fraction(b) * Fraction(a) for b, a in pairs), Fraction(0))
        weight = as_float32(self.bits[at[0], at[1] : at[1] + 1], self.dtype)[0]
        return Fraction(float(weight)) + Fraction(self.lora.scale) * product


def _places(where: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns; most blocks have none, or a few."""
    if not where.any():
        return []
    return [divmod(int(n), where.shape[1]) for n in np.flatnonzero(where)]


def _rounded(value: Fraction, dtype: str) -> int:
    """The bits of the nearest value of a dtype; of two, the even one.  Beyond the largest: infinity."""
    bits, sign = abs(value), value < 0
    digits, least, most = {"F16": (11, -24, 16), "BF16": (8, -133, 128), "F32": (24, -149, 128)}[
        dtype
    ]
    if not bits:
        return 0
    exponent = max(_exponent(bits) - digits + 1, least)
    whole = round(bits / Fraction(2) ** exponent)  # half to even
    if whole == 1 << digits:
        whole, exponent = whole >> 1, exponent + 1
    width = {"F16": 16, "BF16": 16, "F32": 32}[dtype]
    if exponent + digits > most:
        found = ((1 << (width - digits)) - 1) << (digits - 1)
    elif whole < 1 << (digits - 1):  # subnormal
        found = whole
    else:
        found = whole - (1 << (digits - 1)) + ((exponent - least + 1) << (digits - 1))
    return found | (sign << (width - 1))


def _exponent(value: Fraction) -> int:
    """The largest n for which 2**n is not above it."""
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if Fraction(2) ** found <= value else found - 1
