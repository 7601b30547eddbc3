"""The data files of an ONNX graph against the checkpoint: each tensor, value by value."""

from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.onnx.weights import BLOCKS, ROWS, Layout, Stored
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.int8_weights import Int8Comparison
from ingot.parity.values import Comparison

DTYPES = {"F32": "<f4", "F16": "<f2", ROWS: "i1", BLOCKS: "u1"}


def compare(
    folder: Path, layout: Layout, sources: dict[str, Tensor], checkpoint: Checkpoint
) -> dict[str, Any]:
    """What a record says.  Refused where a file has another size, or a value is not the nearest."""
    for name, size in layout.sizes.items():
        if (found := (folder / name).stat().st_size) != size:
            raise Refused(f"{folder / name}: {found} bytes, expected {size}")
    floats, int8 = Comparison(folder), Int8Comparison(folder)
    for tensor in layout.stored:
        if tensor.source not in sources:
            raise Refused(
                f"{checkpoint}: tensor {tensor.source} is in no shard; fetch or copy it again"
            )
        source = sources[tensor.source]
        if tensor.kind in (ROWS, BLOCKS):
            columns = tensor.shape[1]
            most = 128 if tensor.kind == BLOCKS else tensor.most
            int8.tensor(source, columns // tensor.per_row, most, _quantised(folder, tensor))
        else:
            floats.tensor(tensor.source, tensor.kind, source, _plain(folder, tensor))
    return {**floats.checks(), **int8.checks()}


def _plain(folder: Path, tensor: Stored):
    def found(first: int, last: int) -> np.ndarray:
        return _values(folder / tensor.file, tensor.start, tensor, first, last).astype(np.float32)

    return found


def _quantised(folder: Path, tensor: Stored):
    def found(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = _values(folder / tensor.file, tensor.start, tensor, first, last)
        numbers = numbers.astype(np.float32) - (128 if tensor.kind == BLOCKS else 0)
        count = (last - first) * tensor.per_row
        place = tensor.scales_start + 4 * first * tensor.per_row
        return numbers, np.fromfile(folder / tensor.scales_file, "<f4", count, offset=place)

    return found


def _values(path: Path, start: int, tensor: Stored, first: int, last: int) -> np.ndarray:
    row = tensor.nbytes // tensor.shape[0]
    dtype = np.dtype(DTYPES[tensor.kind])
    count = (last - first) * row // dtype.itemsize
    return np.fromfile(path, dtype, count, offset=start + first * row)
