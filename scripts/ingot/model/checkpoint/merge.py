"""A base's rows with what an adapter adds to them, while they are read.

A merged value is W + scale * sum(B * A), rounded once to the dtype of W: the nearest to the exact sum,
whatever machine adds, in whatever order.  (PEFT's own depends on the order in which a library sums: of
millions of values a few are the neighbour of this one.)
"""

import ctypes
import functools
import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ingot.base.refused import Refused
from ingot.model.checkpoint.adapter import Lora
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors import kernels
from ingot.model.tensors.cast import as_float32, not_finite
from ingot.model.tensors.dtypes import FLOATS

ERROR = 2.0**-52  # of a float64, and what a sum of several may be off by, for each of them
SINGLE = 2.0**-24  # of a float32
FAINT = 2.0**28  # times as much is a sum whose float32 is in doubt: the two all but cancel
TIE = 0x80000000  # the low half, moved up, of a float32 midway between two values of bfloat16
STEPS = 1 << 149  # from 0 to 1 of the smallest values that float32 has
LEAST = 2.0**-126  # more than is lost of a sum where its products are too small for a float32
WIDTH = 16  # columns that the kernel merges at a time, as it says itself
ALMOST_INFINITE = 0x7F7F0000  # bits of the largest bfloat16, in float32


class Factors(NamedTuple):
    """A pair in float64: weight [n, in] += scaled [n, r] @ columns [r, in]."""

    scaled: np.ndarray
    columns: np.ndarray
    away: np.ndarray  # [n]: what a sum of a row may be off by, in whatever order it is added


class Tiles(NamedTuple):
    """A pair as envs/convert/kernels.c has it, and in float32 what a sum of a row may be off by."""

    scaled: np.ndarray
    exact: np.ndarray  # the same in float64
    columns: np.ndarray  # [in / WIDTH, r, WIDTH]
    away: np.ndarray
    whole: bool  # nothing of `exact` was rounded


@functools.lru_cache(maxsize=4)  # the tensors that threads are at
def _factors(lora: Lora) -> Factors:
    rows, columns = _matrices(lora)
    scaled = np.ascontiguousarray(rows * lora.scale)
    # a sum of products of magnitudes is at most the product of two lengths
    largest = np.linalg.norm(scaled, axis=1) * np.linalg.norm(columns, axis=0).max() * 1.01
    away = np.where(largest > 0, largest * ERROR * (lora.rank + 4) + LEAST * SINGLE, 0)
    return Factors(scaled, np.ascontiguousarray(columns), away)


@functools.lru_cache(maxsize=4)
def _tiles(lora: Lora) -> Tiles:
    scaled, columns, away = _factors(lora)
    tiles = kernels.aligned((columns.shape[1] // WIDTH, lora.rank, WIDTH), np.float32)
    tiles[:] = columns.reshape(lora.rank, -1, WIDTH).swapaxes(0, 1)
    least = LEAST * max(1, np.abs(columns).max())
    away = np.where(away > 0, away * (SINGLE / ERROR) + least, 0)
    with np.errstate(over="ignore"):
        single, more = scaled.astype(np.float32), (away * (1 + 4 * SINGLE)).astype(np.float32)
    whole = math.frexp(lora.scale)[0] == 0.5
    return Tiles(single, scaled, tiles, more, whole)


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

    A result is overwritten by the next call.
    """

    PASS = 1 << 15  # values at a time that numpy merges: what it makes of them stays in the cache

    def __init__(self):
        self.buffers: dict[str, np.ndarray] = {}
        self.kernel = kernels.of("merge_bf16", "*nn***n*n***")
        self.odd: str | None = None
        self.largest = ctypes.c_uint32()

    def __call__(self, lora: Lora, bits: np.ndarray, dtype: str, first: int) -> np.ndarray:
        """Rows of a weight [n, in] from row `first` on, as bits of `dtype`, merged, as the same.

        None of them may be infinite or NaN, which Rows has seen to.  `odd` says then whether one became it.
        """
        out = self._buffer("merged", bits.size, bits.dtype.type).reshape(bits.shape)
        block = _Block(lora, np.ascontiguousarray(bits), dtype, first)
        places = None
        if self.kernel and dtype == "BF16" and not bits.shape[1] % WIDTH:
            places = self._compiled(self.kernel, block, out)
        finite = places is not None and not len(places)
        if places is None:
            places = (self._bfloat16 if dtype == "BF16" else self._numpys)(block, out)
        with np.errstate(over="ignore"):
            for place in places:
                at = divmod(int(place), bits.shape[1])
                out[at] = _rounded(block.exact(at), dtype)
        self.odd = None if finite else not_finite(out, dtype)
        return out

    def _compiled(self, kernel: Callable, block: "_Block", out: np.ndarray) -> np.ndarray | None:
        """Merge rows of bfloat16 into `out`; returns the places of those that are in doubt.

        None where a value may be infinite, or so large that a float32 on the way to it is.
        """
        tiles, (rows, columns), rank = _tiles(block.lora), block.bits.shape, block.lora.rank
        doubtful = self._buffer("doubtful", out.size, np.uint32)
        part = slice(block.first, block.first + rows)
        scaled, exact, away = (
            one[part].ctypes.data for one in (tiles.scaled, tiles.exact, tiles.away)
        )
        found = kernel(
            block.bits.ctypes.data, rows, columns, scaled, exact, tiles.columns.ctypes.data, rank,
            away, tiles.whole, out.ctypes.data, doubtful.ctypes.data, ctypes.byref(self.largest),
        )  # fmt: skip
        return doubtful[:found] if self.largest.value < ALMOST_INFINITE else None

    def _bfloat16(self, block: "_Block", out: np.ndarray) -> Iterator[int]:
        """The same by numpy, of which each pass is the fastest that it has."""
        for before, part, sums, away in self._sums(block):
            wide, low = (
                self._buffer(n, sums.size, np.uint32).reshape(sums.shape) for n in ("wide", "low")
            )
            near = wide.view(np.float32)
            np.left_shift(block.bits[part], 16, out=wide, dtype=np.uint32)
            sums += near
            np.copyto(near, sums, casting="same_kind")
            np.left_shift(wide, 16, out=low)
            odd = low == TIE  # in float32: in truth it may be none
            faint = (away * FAINT).astype(np.float32).view(np.uint32)
            np.left_shift(wide, 1, out=low)  # without the sign: in the order of magnitudes
            odd |= low < (faint << 1)[:, None]
            wide += np.uint32(0x8000)
            np.right_shift(wide, 16, out=out[part], casting="unsafe")
            yield from before + np.flatnonzero(odd)

    def _numpys(self, block: "_Block", out: np.ndarray) -> Iterator[int]:
        """The same of float16 or float32."""
        kind = FLOATS[block.dtype]
        for before, part, sums, away in self._sums(block):
            sums += as_float32(block.bits[part], block.dtype)
            apart = away[:, None] + np.abs(sums) * ERROR
            out[part] = sums.astype(kind.numpy).view(kind.bits)
            low, high = ((sums + far).astype(kind.numpy) for far in (-apart, apart))
            yield from before + np.flatnonzero(low != high)

    def _sums(self, block: "_Block") -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
        """Of some rows at a time: values before them, the rows, what is added, what that may be off by."""
        factors, (_, columns) = _factors(block.lora), block.bits.shape
        step = max(1, self.PASS // columns)
        for row in range(0, len(block.bits), step):
            part = slice(row, min(row + step, len(block.bits)))
            rows = slice(block.first + part.start, block.first + part.stop)
            sums = self._buffer("sums", (part.stop - row) * columns, np.float64)
            sums = sums.reshape(part.stop - row, columns)
            np.matmul(factors.scaled[rows], factors.columns, out=sums)
            yield row * columns, part, sums, factors.away[rows]

    def _buffer(self, name: str, size: int, dtype: type) -> np.ndarray:
        if name not in self.buffers or len(self.buffers[name]) < size:
            # one that begins at 16, as numpy's, is written four times as slowly to one place in 128
            self.buffers[name] = kernels.aligned((size,), dtype, 64)
        return self.buffers[name][:size]


class _Block(NamedTuple):
    """Some rows of a weight, from row `first` on, and what is added to them."""

    lora: Lora
    bits: np.ndarray
    dtype: str
    first: int

    def exact(self, at: tuple[int, int]) -> Fraction:
        """The merged value, before it is rounded."""
        rows, columns = _matrices(self.lora)
        pair = (_whole(one) for one in (rows[self.first + at[0]], columns[:, at[1]]))
        product = Fraction(sum(map(operator.mul, *pair)), STEPS**2)
        weight = as_float32(self.bits[at[0], at[1] : at[1] + 1], self.dtype)[0]
        return Fraction(float(weight)) + Fraction(self.lora.scale) * product


def _whole(values: np.ndarray) -> list[int]:
    """Of values that float32 has how many steps they are."""
    ratios = (value.as_integer_ratio() for value in values.tolist())
    return [number * (STEPS // of) for number, of in ratios]


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
