"""Values from one dtype to another, block by block, bit for bit as llama.cpp's converter.

By numpy, or in one pass by what envs/convert/kernels.c has of it.  Arrays come as raw bytes and leave as
raw bytes; no pass copies more than a block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.model.tensors import kernels

INFINITY = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
F16_MAX = 65504.0
F16_MAX_BF16 = 0x477F  # bits of 65280, the largest bfloat16 that float16 can hold
SIGN = np.uint32(0x80000000)
KERNELS = {  # (source, target) -> its name, and the dtype of what it makes
    ("BF16", "F16"): ("bf16_to_f16", np.uint16),
    ("BF16", "Q8_0"): ("bf16_to_q8_0", np.uint8),
    ("F32", "Q8_0"): ("f32_to_q8_0", np.uint8),
}
BLOCK = 32  # values of a block of Q8_0, of which a kernel takes whole ones
BEFORE_HALF = np.uint32(0x3EFFFFFF)  # the float32 before 0.5: added, then cut, rounds half away


def not_finite(bits: np.ndarray, dtype: str) -> str | None:
    """NaN or infinity, if there is one.

    Two reductions and no copy: NaNs lie above infinity, signed for +, unsigned for -.
    """
    if not bits.size:
        return None
    signed = bits.view(np.dtype(f"i{bits.itemsize}"))
    sign = 1 << (8 * bits.itemsize - 1)
    most, least = signed.max(), bits.max()
    if most > INFINITY[dtype] or least > INFINITY[dtype] | sign:
        return "NaN"
    return "infinity" if most == INFINITY[dtype] or least == INFINITY[dtype] | sign else None


def unpermute(bits: np.ndarray, head_dim: int) -> np.ndarray:
    """Whole heads of q or k rows [n * head_dim, cols], rotate-half to interleaved order."""
    heads = bits.reshape(-1, 2, head_dim // 2, bits.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(bits.shape)


def as_float32(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Values as a file stores them, those of bfloat16 as their bits, in float32.

    Not by a Caster, which is freed late, and its buffers with it: it holds a method of its own.
    """
    if dtype == "F32":
        return stored.view(np.float32)
    if dtype == "F16":
        return stored.view(np.float16).astype(np.float32)
    wide = stored.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


class Caster:
    """Casts blocks of `source` dtype to `target` type; one a thread, since it owns its buffers.

    A result is overwritten by the next call.  Fresh arrays for every block would cost more in page
    faults than the arithmetic does.
    """

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target
        self.overflowed = 0  # finite values that became infinite
        self.buffers: dict[str, np.ndarray] = {}
        # unbound: a reference to itself would keep its buffers when its thread has ended
        self.method: Any = {
            ("BF16", "F16"): Caster._bf16_to_f16,
            ("F32", "F16"): Caster._to_f16,
            ("BF16", "F32"): Caster._to_f32,
            ("F16", "F32"): Caster._to_f32,
            ("F32", "BF16"): Caster._to_bf16,
            ("F16", "BF16"): Caster._to_bf16,
        }.get((source, target), Caster._to_q8_0 if target == "Q8_0" else None)
        name, self.kind = KERNELS.get((source, target), ("", np.uint8))
        self.kernel = kernels.of(name, "*n*") if name else None

    def __call__(self, bits: np.ndarray) -> np.ndarray:
        """The block as the target's bytes, a flat array."""
        if self.source == self.target:
            return bits
        if self.kernel and not bits.size % BLOCK:
            return self._compiled(self.kernel, np.ascontiguousarray(bits))
        return self.method(self, bits.reshape(-1))

    def _compiled(self, kernel: Callable, bits: np.ndarray) -> np.ndarray:
        size = bits.size // BLOCK * 34 if self.target == "Q8_0" else bits.size
        out = self._buffer("compiled", size, self.kind)
        self.overflowed += kernel(bits.ctypes.data, bits.size, out.ctypes.data)
        return out

    def _buffer(self, name: str, size: int, dtype: type) -> np.ndarray:
        if name not in self.buffers or len(self.buffers[name]) < size:
            # one that begins at 16, as numpy's, is written four times as slowly to one place in 128
            self.buffers[name] = kernels.aligned((size,), dtype, 64)
        return self.buffers[name][:size]

    def _bf16_to_f16(self, bits: np.ndarray) -> np.ndarray:
        magnitude = max(bits.view(np.int16).max(initial=0), int(bits.max(initial=0)) & 0x7FFF)
        if magnitude > F16_MAX_BF16:
            plain = bits & 0x7FFF
            self.overflowed += int(((plain > F16_MAX_BF16) & (plain < 0x7F80)).sum())
        out = self._buffer("halves", bits.size, np.uint16)
        return BF16_TO_F16.take(bits, mode="clip", out=out)

    def _to_f16(self, bits: np.ndarray) -> np.ndarray:
        values = bits.view(np.float32)
        halves = self._buffer("halves", bits.size, np.float16)
        with np.errstate(over="ignore"):
            np.copyto(halves, values, casting="same_kind")
        # numpy is slow to look at halves: as slow as to make them
        if values.size and not max(values.max(), -values.min()) <= F16_MAX:
            self.overflowed += int((np.isinf(halves) & np.isfinite(values)).sum())
        return halves

    def _to_f32(self, bits: np.ndarray) -> np.ndarray:
        if self.source == "F32":
            return bits.view(np.float32)
        if self.source == "F16":
            return bits.view(np.float16).astype(np.float32)
        wide = self._buffer("wide", bits.size, np.uint32)
        np.copyto(wide, bits)
        wide <<= 16
        return wide.view(np.float32)

    def _to_bf16(self, bits: np.ndarray) -> np.ndarray:
        n = self._to_f32(bits).view(np.uint32)
        rounded = self._buffer("rounded", n.size, np.uint32)
        np.right_shift(n, 16, out=rounded)
        rounded &= 1
        rounded += 0x7FFF
        rounded += n
        rounded >>= 16
        out = self._buffer("upper", n.size, np.uint16)
        np.copyto(out, rounded, casting="unsafe")
        return out

    def _to_q8_0(self, bits: np.ndarray) -> np.ndarray:
        """Blocks of 32: the scale d = max|x| / 127 as float16, then 32 int8 of x / d.

        Each pass is the fastest of those that numpy has for it, on blocks that stay in the cache.
        """
        count = bits.size
        values = self._to_f32(bits)
        if self.source == "BF16":  # the order of magnitudes is that of the bits: half the bytes
            plain = self._buffer("plain", count, np.uint16)
            top = self._largest(np.bitwise_and(bits, 0x7FFF, out=plain))
            largest = (top.astype(np.uint32) << 16).view(np.float32)
        else:
            largest = self._largest(np.abs(values))
        scale = largest / np.float32(127)
        with np.errstate(divide="ignore"):
            inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        scaled = self._buffer("scaled", count, np.float32)
        np.multiply(values.reshape(-1, 32), inverse[:, None], out=scaled.reshape(-1, 32))
        half = self._buffer("half", count, np.uint32)
        np.bitwise_and(scaled.view(np.uint32), SIGN, out=half)
        half |= BEFORE_HALF  # 0.5 less one bit, with the sign of each value
        scaled += half.view(np.float32)
        out = self._buffer("blocks", count // BLOCK * 34, np.uint8).reshape(-1, 34)
        with np.errstate(over="ignore"):
            self.overflowed += int((scale > F16_MAX).sum()) * 32
            out[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
        np.copyto(out[:, 2:].view(np.int8), scaled.reshape(-1, 32), casting="unsafe")
        return out

    def _largest(self, values: np.ndarray) -> np.ndarray:
        """The maximum of each 32; transposed first: numpy is slow along a short last axis."""
        across = self._buffer("across", values.size, values.dtype).reshape(32, -1)
        np.copyto(across, values.reshape(-1, 32).T)
        return across.max(axis=0)


def _table() -> np.ndarray:
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    with np.errstate(over="ignore", invalid="ignore"):
        return bits.view(np.float32).astype(np.float16).view(np.uint16)


BF16_TO_F16 = _table()  # 128 KiB, indexed by the bits of a bfloat16
