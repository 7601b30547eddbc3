"""Codes and scales of blocks of rows: the arithmetic of compressed-tensors' schemes.

A group of weights shares a scale; a code is the nearest to weight / scale.  A scale is rounded to the
dtype of the checkpoint's weights, as llm-compressor does.  The quotient stays in float32, as in
llm-compressor's kernels for GPUs; on a CPU that rounds it to that dtype, too, which loses more.

Each scheme's function takes rows [n, in], float32 (of fp8_block as stored), the scale of their set (NVFP4
has one), the dtype of scales, and that of quotients; it gives codes and scales.
Source: compressed-tensors 0.19, quantization/utils and quantization/lifecycle.
"""

from collections.abc import Callable

import numpy as np

from ingot.model.tensors import few_bits
from ingot.model.tensors.cast import Caster, as_float32

EPSILON = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23}  # stands for a scale of 0
LEAST = {"BF16": 2.0**-126, "F16": 2.0**-14, "F32": 2.0**-126}
SIDE, STRIPE = 128, 512  # of a block; columns at a time
EIGHTH = np.uint8(0x20)  # 0.125 in E4M3, there


def scales_of(largest: np.ndarray, most: float, stored: str) -> np.ndarray:
    """float32, each rounded to the checkpoint's dtype."""
    found = rounded(largest / np.float32(most), stored)
    return np.where(found == 0, np.float32(EPSILON[stored]), found)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 to the nearest values of a dtype, in float32."""
    bits = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return bits
    cast = Caster("F32", dtype)(bits.view(np.uint32)).view(np.uint16)
    return as_float32(cast, dtype).reshape(values.shape)


def as_stored(scales: np.ndarray, stored: str) -> np.ndarray:
    """Scales that are values of the checkpoint's dtype already, as its bytes."""
    return Caster("F32", stored)(np.ascontiguousarray(scales).view(np.uint32)).view(np.uint8)


def _quotients(values: np.ndarray, scales: np.ndarray, to: str) -> np.ndarray:
    found = values / scales
    return found if to == "F32" else rounded(found, to)


def of_rows(code: Callable, most: float) -> Callable:
    """A scale for each row."""

    def codes(values: np.ndarray, of_set: float, stored: str, to: str):
        largest = np.maximum(values.max(axis=1), -values.min(axis=1))[:, None]
        scales = scales_of(largest, most, stored)
        return code(_quotients(values, scales, to)), as_stored(scales, stored)

    return codes


def int8(quotients: np.ndarray) -> np.ndarray:
    return few_bits.whole(quotients, 8)


def fp8_blocks(bits: np.ndarray, of_set: float, stored: str, to: str):
    """A scale for each block of 128 x 128, the last of a side perhaps smaller.

    Takes the bits of stored values: in float32 a block of wide rows would be too much for each thread.
    """
    (rows, columns), down = bits.shape, range(0, len(bits), SIDE)
    codes = np.empty(bits.shape, np.uint8)
    scales = np.empty((len(down), -(-columns // SIDE)), np.float32)
    for first in range(0, columns, STRIPE):
        values = as_float32(np.ascontiguousarray(bits[:, first : first + STRIPE]), stored)
        values = values.reshape(rows, -1)
        across = range(0, values.shape[1], SIDE)
        largest = np.maximum.reduceat(np.abs(values), down, axis=0)
        found = scales_of(np.maximum.reduceat(largest, across, axis=1), 448, stored)
        each = found.repeat(SIDE, axis=0)[:rows].repeat(SIDE, axis=1)[:, : values.shape[1]]
        codes[:, first : first + STRIPE] = few_bits.e4m3(_quotients(values, each, to))
        scales[:, first // SIDE : first // SIDE + len(across)] = found
    return codes, as_stored(scales, stored)


def _grouped(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups [n, size] of rows, and the largest of each, without a sign."""
    groups = values.reshape(-1, size)
    across = groups.T.copy()  # numpy is slow along a short last axis
    return groups, np.abs(across, out=across).max(axis=0)


def int4_groups(values: np.ndarray, of_set: float, stored: str, to: str):
    groups, largest = _grouped(values, 128)
    scales = scales_of(largest, 7.5, stored)[:, None]
    numbers = few_bits.whole(_quotients(groups, scales, to), 4)
    return few_bits.eights(numbers.reshape(values.shape)), as_stored(scales, stored)


def _e2m1(quotients: np.ndarray) -> np.ndarray:
    """-0 has the code of 0, as compressed-tensors has it; what is rounded to -0 keeps its sign."""
    quotients += np.float32(0)
    return few_bits.e2m1(quotients)


def mxfp4(values: np.ndarray, of_set: float, stored: str, to: str):
    """Scales are powers of two, stored as exponents."""
    groups, largest = _grouped(values, 32)
    # the exponent of the largest, were it rounded to one bit of mantissa; 2 is that of E2M1's own largest
    bits = largest.view(np.uint32) + np.uint32(1 << 21)
    exponents = np.maximum((bits >> 23).astype(np.int32) - 2, 0)
    scales = np.ldexp(np.float32(1), exponents - 127)[:, None]
    codes = _e2m1(_quotients(groups, scales, to))
    return few_bits.pairs(codes.reshape(values.shape)), exponents.astype(np.uint8)


def nvfp4(values: np.ndarray, of_set: float, stored: str, to: str):
    """Scales are E4M3 of what is left once `of_set`, the scale of all, is taken out."""
    groups, largest = _grouped(values, 16)
    found = few_bits.e4m3(np.float32(of_set) * rounded(largest / np.float32(6), stored))
    found = np.where(found == 0, EIGHTH, found)
    scales = (few_bits.of_e4m3(found) / np.float32(of_set))[:, None]
    codes = _e2m1(groups / scales)
    return few_bits.pairs(codes.reshape(values.shape)), found


def scale_of_set(largest: float, stored: str) -> float:
    """NVFP4's one scale of a set of layers, by the largest weight of them all."""
    inverse = rounded(np.float32(1) / np.maximum(np.float32(largest), LEAST[stored])[None], stored)
    found = rounded(np.float32(2688) * inverse, stored)  # E4M3's largest times E2M1's
    return float(found[0]) if np.isfinite(found[0]) else 1.0
