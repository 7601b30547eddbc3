"""FP8 weights of a checkpoint: each block of their rows and columns has a scale, beside them.

A value is code * scale in float32, as transformers multiplies it out (FineGrainedFP8Config.dequantize).
"""

from math import ceil

import numpy as np

from ingot.base import stream
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors import few_bits
from ingot.model.tensors.cast import as_float32, not_finite
from ingot.model.tensors.dtypes import FLOATS

CODES = "F8_E4M3"
Block = tuple[int, int]  # rows, columns


def name_of(weight: str) -> str:
    return f"{weight}_scale_inv"


def shape_of(weight: Tensor, block: Block) -> tuple[int, ...]:
    """Of the scales of a weight [out, in]."""
    return tuple(ceil(size / side) for size, side in zip(weight.shape, block, strict=True))


def of(scales: Tensor) -> np.ndarray:
    """float32, of the shape that its header says.  Refused: what is damaged."""
    buffer = memoryview(bytearray(scales.nbytes))
    with scales.path.open("rb") as file:
        stream.read_exactly(file.fileno(), buffer, scales.offset, scales.path)
    bits = np.frombuffer(buffer, FLOATS[scales.dtype].bits)
    if odd := not_finite(bits, scales.dtype):
        raise Refused(f"{scales.path}: tensor {scales.name} holds {odd}; the checkpoint is damaged")
    return as_float32(bits, scales.dtype).reshape(scales.shape)


def multiplied(
    codes: np.ndarray, scales: np.ndarray, block: Block, first: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Codes [n, in] of a weight's rows from `first` on as values, float32; `scales` are all of its own.

    The values lie in `out`, of the codes' shape, where it is given.
    """
    values = few_bits.of_e4m3(codes, out)
    rows, columns = codes.shape
    at = 0
    while at < rows:
        which = (first + at) // block[0]
        end = min(rows, (which + 1) * block[0] - first)
        with np.errstate(over="ignore"):  # who reads it refuses infinity by its name
            values[at:end] *= scales[which].repeat(block[1])[:columns]
        at = end
    return values
