"""The dtypes of tensors: how ggml numbers and packs them, and how others name and store them."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple


class TensorType(NamedTuple):
    """A ggml tensor type: `block` values are stored in `size` bytes."""

    name: str
    number: int
    block: int
    size: int

    def nbytes(self, shape: Iterable[int]) -> int:
        return prod(shape) // self.block * self.size


TYPES = {
    name: TensorType(name, number, block, size)
    for name, number, block, size in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("BF16", 30, 1, 2),
        ("Q8_0", 8, 32, 34),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
    )
}


class Float(NamedTuple):
    """A dtype of plain values, named as safetensors and ggml do."""

    itemsize: int  # bytes
    numpy: str  # bfloat16 has no name there: its bits
    bits: str
    torch: str


FLOATS = {
    "F32": Float(4, "<f4", "<u4", "float32"),
    "F16": Float(2, "<f2", "<u2", "float16"),
    "BF16": Float(2, "<u2", "<u2", "bfloat16"),
}
QUANTISED = {"F8_E4M3": Float(1, "u1", "u1", "float8_e4m3fn"), "I8": Float(1, "i1", "u1", "int8")}
