"""What a checkpoint's values must have become in another file, written without the converter's code.

Verification only: plain float32 arithmetic of numpy, a chunk of rows at a time.
"""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.dtypes import FLOATS
from ingot.parity.adapted import Adapted
from ingot.parity.joined_experts import Joined
from ingot.parity.made import Made

CHUNK = 1 << 16  # values compared at a time: as float32 they stay in a core's cache
INFINITY = {"F16": 0x7C00, "BF16": 0x7F80}  # its bits; beyond are those of NaN
WIDE = 1 << 23  # by torch, each of whose operations takes a while to start


def forget(reader) -> None:
    """Give back the pages of a GGUFReader's file: once read, they would count as ours to its end."""
    reader.data._mmap.madvise(mmap.MADV_DONTNEED)


class Comparison:
    """Counts what was compared, and stops at the first value that is not the nearest."""

    def __init__(self, path: Path):
        self.path = path
        self.counts: dict[str, int | float] = {
            "tensors": 0, "tensors_equal": 0, "values": 0, "values_rounded": 0,
            "largest_difference": 0.0,
        }  # fmt: skip

    def tensor(
        self,
        name: str,
        kind: str,
        source: Tensor,
        found: Callable[[int, int], np.ndarray],
        plus: float = 0,
    ) -> None:
        """Compare found(first, last) with the source's rows and `plus`: float32, or as `kind` is stored."""
        off = 0
        plain = type(source) is Tensor and source.dtype == kind in INFINITY and not plus
        for first, last in parts(source):
            got = found(first, last)
            if plain and got.dtype == FLOATS[kind].numpy:
                bits = stored(source, first, last).view(np.uint16)
                equal = np.array_equal(got.view(np.uint16).reshape(bits.shape), bits)
                if equal and (bits & 0x7FFF).max() <= INFINITY[kind]:  # NaN is equal to nothing
                    continue
            wanted = values(source, first, last)
            wanted = wanted + np.float32(plus) if plus else wanted
            got = as_float32(got, kind).reshape(wanted.shape)
            changed = int(np.count_nonzero(got != wanted))
            off += changed
            if changed and (np.isinf(got) & np.isfinite(wanted)).any():
                raise Refused(
                    f"{self.path}: tensor {name} holds infinity in {kind}, expected values up to "
                    f"{np.abs(wanted[np.isfinite(wanted)]).max():.3g}; ask for another dtype"
                )
            if changed and not nearest(kind, got, wanted).all():
                raise Refused(f"{self.path}: tensor {name} is not the checkpoint's in {kind}")
            if changed:
                with np.errstate(invalid="ignore"):
                    away = np.abs(got - wanted)[np.isfinite(wanted)].max(initial=0)
                self.differs_by(float(away))
        self.add(source.shape, off)

    def add(self, shape: tuple[int, ...], rounded: int) -> None:
        """A tensor passed, so many of its values rounded."""
        self.counts["values"] += int(np.prod(shape))
        self.counts["values_rounded"] += rounded
        self.equal(rounded == 0)

    def differs_by(self, much: float) -> None:
        self.counts["largest_difference"] = max(self.counts["largest_difference"], much)

    def equal(self, whether: bool = True) -> None:
        self.counts["tensors"] += 1
        self.counts["tensors_equal"] += whether

    def checks(self) -> dict:
        """What a record says."""
        return {**self.counts, "limit": "the nearest value of the dtype"}


def parts(source: Tensor) -> Iterator[tuple[int, int]]:
    """Its chunks: large ones of joined experts, whose rows lie across a tensor that each goes through."""
    return chunks(source.shape, WIDE if isinstance(source, Joined) else CHUNK)


def chunks(shape: tuple[int, ...], size: int = CHUNK) -> Iterator[tuple[int, int]]:
    """First and last row of each chunk of `size` values."""
    rows = max(1, size * shape[0] // max(int(np.prod(shape)), 1))
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])


def values(source: Tensor, first: int, last: int):
    """Rows first..last of a checkpoint's tensor, as float32; with an adapter's part, where it has one."""
    if isinstance(source, Made):
        return source.floats(first, last)
    found = as_float32(stored(source, first, last), source.dtype)
    return source.changed(found, first) if isinstance(source, Adapted) else found


def stored(source: Tensor, first: int, last: int):
    """Those rows as the checkpoint has them; of bfloat16 the bits."""
    row = source.nbytes // source.shape[0]
    kind = FLOATS[source.dtype].numpy
    raw = np.fromfile(
        source.path, kind, (last - first) * row // np.dtype(kind).itemsize,
        offset=source.offset + first * row,
    )  # fmt: skip
    return raw.reshape(last - first, -1)


def as_float32(stored, dtype: str):
    """Values as a file stores them, those of bfloat16 as their bits, in float32, as which they may be."""
    if dtype == "BF16" and stored.dtype != np.float32:
        return np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)
    return stored.astype(np.float32, copy=False)


def row_order(heads: int | None, head_dim: int, shape: tuple[int, ...]):
    """Where each row of the checkpoint lies in the GGUF file."""
    rows = np.arange(shape[0])
    if heads is None:
        return rows
    head, inside = np.divmod(rows, head_dim)
    half = head_dim // 2
    return head * head_dim + 2 * (inside % half) + inside // half


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of the nearest bfloat16, halves to the even one."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_float16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


CASTS = {"F32": np.ascontiguousarray, "F16": to_float16, "BF16": to_bfloat16}


def nearest(kind: str, got, wanted):
    """Of each value, whether `got` is `wanted` rounded to the type `kind`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "F16":
            return wanted.astype(np.float16).astype(np.float32) == got
        if kind == "BF16":  # half a step: eight bits of mantissa, and none below 2^-133
            exponent = np.where(wanted == 0, -200, np.frexp(wanted)[1])
            half = np.maximum(np.ldexp(np.float32(1), exponent - 9), np.float32(2.0**-134))
            return (got == wanted) | (np.abs(got - wanted) <= half)
        if kind == "Q8_0":
            scale = np.abs(wanted).reshape(-1, 32).max(axis=1, keepdims=True) / 127
            # half a step of q, and the rounding of the scale to float16
            limit = scale * (0.5 + 127 * 2.0**-11) + 2.0**-18
            return np.abs(got - wanted).reshape(-1, 32) <= limit
    return np.zeros(1, bool)
