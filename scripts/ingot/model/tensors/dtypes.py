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
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("IQ1_M", 29, 256, 56),
        ("MXFP4", 39, 32, 17),
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
_BYTE = {name: Float(1, "u1", "u1", "uint8") for name in ("F8_E5M2", "F8_E8M0", "U8", "BOOL")}
_WIDE = {
    f"{kind}{bits}": Float(bits // 8, f"<{kind.lower()}{bits // 8}", f"<u{bits // 8}", "")
    for kind, bits in (("I", 16), ("U", 16), ("I", 32), ("U", 32), ("I", 64), ("U", 64), ("F", 64))
}
QUANTISED = {"F8_E4M3": Float(1, "u1", "u1", "float8_e4m3fn"), "I8": Float(1, "i1", "u1", "int8")}
# what quantised checkpoints hold, that other people's tools and servers read
STORED = {**FLOATS, **QUANTISED, **_BYTE, **_WIDE}
