"""Whether int8 weights are the nearest to a checkpoint's, written without the quantiser's code."""

from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.values import chunks, values

NOTHING = 3e-39  # a scale so small that its inverse is infinite may be 0, and all its numbers
TIE = 1e-3  # steps; where a value lies between two numbers, float32 may round to either


class Int8Comparison:
    """Counts tensors and values; refuses at the first scale or number that is not the nearest.

    The scale of a group, a row or a block of one, is its largest value over `most`.
    """

    def __init__(self, path: Path):
        self.path, self.tensors, self.values = path, 0, 0
        self.errors: list[float] = []  # the root mean square over that of the weights, per tensor

    def tensor(self, source: Tensor, group: int, most: int, found) -> None:
        """found(first, last) are numbers [rows, in], without an offset, and scales [rows, in / group]."""
        off = total = 0.0
        for first, last in chunks(source.shape):
            wanted = values(source, first, last).reshape(-1, group)
            numbers, scales = found(first, last)
            numbers, scales = numbers.reshape(-1, group).astype(np.float32), scales.reshape(-1, 1)
            largest = np.abs(wanted).max(axis=1, keepdims=True)
            nearest = np.abs(np.abs(scales) - largest / np.float32(most)) <= 1e-6 * np.abs(scales)
            nearest |= (scales == 0) & (largest / np.float32(most) < NOTHING)
            if not nearest.all():
                raise Refused(
                    f"{self.path}: a scale of {source.name} is not its largest value over {most}"
                )
            with np.errstate(divide="ignore", invalid="ignore"):
                exact = np.where(scales == 0, 0, wanted / scales)
            low, high = -128 if most == 128 else -most, 127 if most == 128 else most
            away = np.abs(numbers - np.clip(exact, low, high))
            if not (away <= 0.5 + TIE).all() or numbers.min() < low or numbers.max() > high:
                raise Refused(
                    f"{self.path}: {source.name} is not the checkpoint's in int8, expected the nearest "
                    "number of its scale"
                )
            off += float(((numbers * scales - wanted).astype(np.float64) ** 2).sum())
            total += float((wanted.astype(np.float64) ** 2).sum())
        self.tensors += 1
        self.values += int(np.prod(source.shape))
        self.errors.append((off / total) ** 0.5 if total else 0.0)

    def checks(self) -> dict:
        """What a record says."""
        if not self.tensors:
            return {}
        return {
            "int8_tensors": self.tensors,
            "int8_values": self.values,
            "int8_largest_error": float(f"{max(self.errors):.4g}"),
            "int8_limit": "the nearest number of its scale",
        }
