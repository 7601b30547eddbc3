"""Float32 values as the 8 and 4 bits of quantised checkpoints: E4M3, E2M1, int8, int4.

Nearest codes, ties to the even one; what lies beyond the largest value becomes it.  numpy only.
E4M3 is the variant without infinity (OCP 8-bit floating point specification 1.0); E2M1 is that of the
OCP microscaling specification 1.0.
"""

import numpy as np


def _values(exponent: int, mantissa: int) -> np.ndarray:
    """The values of all codes without a sign, float64: of exponents' and mantissas' bits."""
    codes, bias = np.arange(1 << (exponent + mantissa)), (1 << (exponent - 1)) - 1
    power, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    return np.where(power, np.ldexp(1 + fraction, power - bias), np.ldexp(fraction, 1 - bias))


def _codes(values: np.ndarray) -> np.ndarray:
    """By the upper half of a float32's bits, the lowest of which says whether the lower half is not 0.

    That bit tells a value from a tie, so that no more of it is needed.
    """
    plain = (np.arange(1 << 15, dtype=np.uint32) << 16).view(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    with np.errstate(invalid="ignore"):  # of NaNs
        found = np.searchsorted(middles, plain)  # of a tie the lower
    found += np.isin(plain, middles) & (found % 2 == 1)
    sign = 1 << (len(values) - 1).bit_length()
    return np.concatenate([found, found | sign]).astype(np.uint8)


_E4M3 = _values(4, 3)[:-1]  # the last is NaN
_TO_E4M3, _TO_E2M1 = _codes(_E4M3), _codes(_values(2, 1))
_OF_E4M3 = np.concatenate([_E4M3, [np.nan], -_E4M3, [np.nan]]).astype(np.float32)


def e4m3(values: np.ndarray) -> np.ndarray:
    """uint8, a code for each value."""
    return _TO_E4M3.take(_halves(values), mode="clip")


def e2m1(values: np.ndarray) -> np.ndarray:
    """uint8, a code of four bits for each value."""
    return _TO_E2M1.take(_halves(values), mode="clip")


def _halves(values: np.ndarray) -> np.ndarray:
    """What _codes goes by, of float32."""
    bits = values.view(np.uint32)
    found = bits >> np.uint32(16)
    found |= bits.astype(np.uint16) != 0
    return found


def of_e4m3(codes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The float32 values of codes; in `out`, of their shape, where it is given."""
    return _OF_E4M3.take(codes, mode="clip", out=out)


def whole(values: np.ndarray, bits: int) -> np.ndarray:
    """int8, from -2^(bits-1) to 2^(bits-1) - 1."""
    most = 1 << (bits - 1)
    found = np.rint(values)
    np.clip(found, -most, most - 1, out=found)
    return found.astype(np.int8)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Codes of four bits [n, in] as uint8 [n, in / 2], the even column in the lower half."""
    both = codes.view("<u2")  # the even one is its lower byte
    return (both | both >> 4).astype(np.uint8)


def eights(numbers: np.ndarray) -> np.ndarray:
    """int4 [n, in] as int32 [n, in / 8]: each plus 8, the first column in the lowest four bits."""
    halves = pairs((numbers + 8).view(np.uint8))
    return halves.view("<i4")


def mxfp4_blocks(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, 17] as ggml has MXFP4: a scale, and codes 0 to 15 of a block beside 16 to 31.

    `codes` are uint8 [rows, blocks * 16], two neighbours a byte, the first in its lower half; `scales`
    uint8 [rows, blocks].
    """
    rows, blocks = scales.shape
    found = np.empty((rows, blocks, 17), np.uint8)
    found[..., 0] = scales
    halves = np.ascontiguousarray(codes).reshape(rows, blocks, 2, 8)
    front, back = halves[:, :, 0], halves[:, :, 1]
    found[..., 1::2] = (front & 0x0F) | (back << 4)
    found[..., 2::2] = (front >> 4) | (back & 0xF0)
    return found
