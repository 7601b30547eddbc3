"""The weights of a TensorRT-LLM checkpoint as float32, quantised ones dequantised.

numpy only; a chunk of rows at a time.
"""

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.tensorrt.checkpoint import GROUP, Quant
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.dtypes import FLOATS, QUANTISED
from ingot.parity.scaled_weights import E4M3
from ingot.parity.values import as_float32

SUBNORMAL = 2.0**-25  # half of float16's smallest step: the source may have been rounded to it
USED = 0.4  # of the steps that the median row's largest weight takes: merged q, k, v share a scale
CHUNK = 1 << 12  # rows looked at at a time


def rows_of(tensor: Tensor, first: int, last: int) -> np.ndarray:
    """Rows first..last as they are stored, in float32 [rows, columns]."""
    columns = int(np.prod(tensor.shape[1:]))
    kind = np.dtype((FLOATS | QUANTISED)[tensor.dtype].numpy)
    offset = tensor.offset + first * columns * kind.itemsize
    raw = np.fromfile(tensor.path, kind, (last - first) * columns, offset=offset)
    stored = E4M3[raw] if tensor.dtype == "F8_E4M3" else as_float32(raw, tensor.dtype)
    return stored.reshape(last - first, -1)


def unpacked(quant: Quant, tensor: Tensor, first: int, last: int) -> np.ndarray:
    """Rows of a quantised weight, in steps."""
    if quant.packed == 1:
        return rows_of(tensor, first, last)
    # rows 2n and 2n + 1 are the low and the high half of each byte, signed
    byte = rows_of(tensor, first // 2, -(-last // 2)).astype(np.int8)
    pair = np.stack([(byte << 4).astype(np.int8) >> 4, byte >> 4], axis=1)
    return pair.reshape(-1, byte.shape[1])[first % 2 :][: last - first].astype(np.float32)


def multiplied(quant: Quant, tensors: dict[str, Tensor], layer: str, first: int, last: int):
    """Rows of `layer`'s weight times its scales, and how far each may be from the source."""
    stored = unpacked(quant, tensors[f"{layer}.weight"], first, last)
    scale_of = tensors[f"{layer}.weights_scaling_factor"]
    if scale_of.shape == (1,):
        scale = rows_of(scale_of, 0, 1)
    else:
        scale = rows_of(scale_of, first, last)
        scale = np.repeat(scale, GROUP, axis=1) if len(scale_of.shape) == 2 else scale
    smooth = np.float32(1)
    if prequant := tensors.get(f"{layer}.prequant_scaling_factor"):
        smooth = rows_of(prequant, 0, prequant.shape[0]).reshape(1, -1)
    got = stored * scale * smooth
    if quant.dtype == "F8_E4M3":  # 3 bits of mantissa; 2 ** -9 is the smallest step
        return got, np.abs(got) * (2.0**-4 * 1.07) + scale * 2.0**-10 + SUBNORMAL
    # the smoothed weight was rounded to the checkpoint's dtype before it was quantised
    rounding = 2.0**-8 if prequant.dtype == "BF16" else 2.0**-10
    half = scale * 0.5 * (1 + 2.0**-8) + np.abs(stored * scale) * rounding
    return got, half * smooth + SUBNORMAL


def check_scales(quant: Quant, tensors: dict[str, Tensor], layer: str) -> None:
    """Every scale is above 0, and a weight's no coarser than its own largest value demands."""
    for scale in quant.scales:
        tensor = tensors[f"{layer}.{scale}"]
        found = rows_of(tensor, 0, tensor.shape[0])
        if not (np.isfinite(found) & (found > 0)).all():
            raise Refused(
                f"{tensor.path}: tensor {tensor.name} has values that are no scale, expected "
                "finite ones above 0"
            )
    weight = tensors[f"{layer}.weight"]
    full = {"F8_E4M3": 448, "I8": 127 if quant.packed == 1 else 7}[weight.dtype]
    top, rows = [], weight.shape[0] * quant.packed
    for first in range(0, rows, CHUNK):
        stored = np.abs(unpacked(quant, weight, first, min(first + CHUNK, rows)))
        width = GROUP if quant.packed == 2 else stored.shape[1]
        top.append(stored.reshape(-1, width).max(axis=1))
    largest = np.concatenate(top)
    one = tensors[f"{layer}.weights_scaling_factor"].shape == (1,)
    used = largest.max() if one else np.median(largest)
    if used < full * USED:
        raise Refused(
            f"{weight.path}: tensor {weight.name} uses {used:.0f} of {full} steps, expected most of "
            "them: its scales are too coarse"
        )
