"""Values from one dtype to another, block by block, bit for bit as llama.cpp's converter.

numpy only.  Arrays come as raw bytes and leave as raw bytes; no pass copies more than a block.
"""

import numpy as np

NUMPY = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}  # the bits of each dtype
INFINITY = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
F16_MAX_BF16 = 0x477F  # bits of 65280, the largest bfloat16 that float16 can hold
BEFORE_HALF = np.float32(0.49999997)  # the float32 before 0.5: rounds half away from zero


def has_nan(bits: np.ndarray, dtype: str) -> bool:
    """Two reductions and no copy: NaNs lie above infinity, signed for +, unsigned for -."""
    signed = bits.view(np.dtype(f"i{bits.itemsize}"))
    sign = 1 << (8 * bits.itemsize - 1)
    return bits.size > 0 and (signed.max() > INFINITY[dtype] or bits.max() > INFINITY[dtype] | sign)


def unpermute(bits: np.ndarray, head_dim: int) -> np.ndarray:
    """Whole heads of q or k rows [n * head_dim, cols], rotate-half to interleaved order."""
    heads = bits.reshape(-1, 2, head_dim // 2, bits.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(bits.shape)


class Caster:
    """Casts blocks of `source` dtype to `target` type; one per thread, since it owns its buffers."""

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target
        self.overflowed = 0  # finite values that became infinite
        self.method = {
            ("BF16", "F16"): self._bf16_to_f16,
            ("F32", "F16"): self._to_f16,
            ("BF16", "F32"): self._to_f32,
            ("F16", "F32"): self._to_f32,
            ("F32", "BF16"): self._to_bf16,
            ("F16", "BF16"): self._to_bf16,
        }.get((source, target), self._to_q8_0 if target == "Q8_0" else None)

    def __call__(self, bits: np.ndarray) -> np.ndarray:
        return bits if self.source == self.target else self.method(bits)

    def _bf16_to_f16(self, bits: np.ndarray) -> np.ndarray:
        magnitude = max(bits.view(np.int16).max(initial=0), int(bits.max(initial=0)) & 0x7FFF)
        if magnitude > F16_MAX_BF16:
            plain = bits & 0x7FFF
            self.overflowed += int(((plain > F16_MAX_BF16) & (plain < 0x7F80)).sum())
        return BF16_TO_F16.take(bits, mode="clip")

    def _to_f16(self, bits: np.ndarray) -> np.ndarray:
        values = bits.view(np.float32)
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        self.overflowed += int((np.isinf(halves) & np.isfinite(values)).sum())
        return halves

    def _to_f32(self, bits: np.ndarray) -> np.ndarray:
        if self.source == "F32":
            return bits.view(np.float32)
        if self.source == "F16":
            return bits.view(np.float16).astype(np.float32)
        wide = np.zeros((*bits.shape, 2), np.uint16)
        wide[..., 1] = bits  # the upper half, little-endian
        return wide.view(np.float32)[..., 0]

    def _to_bf16(self, bits: np.ndarray) -> np.ndarray:
        n = self._to_f32(bits).view(np.uint32)
        return ((n + (0x7FFF + ((n >> 16) & 1))) >> 16).astype(np.uint16)

    def _to_q8_0(self, bits: np.ndarray) -> np.ndarray:
        """Blocks of 32: the scale d = max|x| / 127 as float16, then 32 int8 of x / d."""
        values = self._to_f32(bits).reshape(-1, 32)
        if (
            self.source == "BF16"
        ):  # the order of magnitudes is the order of the bits: half the bytes
            top = (bits & 0x7FFF).reshape(-1, 32).max(axis=1).astype(np.uint32) << 16
            largest = top.view(np.float32)
        else:
            largest = np.abs(values).max(axis=1)
        scale = largest / np.float32(127)
        with np.errstate(divide="ignore"):
            inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        scaled = values * inverse[:, None]
        scaled += np.copysign(BEFORE_HALF, scaled)
        out = np.empty((len(values), 34), np.uint8)
        with np.errstate(over="ignore"):
            out[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
        out[:, 2:].view(np.int8)[...] = scaled.astype(np.int8)
        return out


def _table() -> np.ndarray:
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    with np.errstate(over="ignore", invalid="ignore"):
        return bits.view(np.float32).astype(np.float16).view(np.uint16)


BF16_TO_F16 = _table()  # 128 KiB, indexed by the bits of a bfloat16
