"""A tensor whose values are worked out of what a checkpoint stores.  Verification only."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ingot.model.checkpoint.safetensors import Tensor


@dataclass(frozen=True, eq=False)
class Made(Tensor):
    """`shape` is [rows, columns] of its values."""

    @property
    def beside(self) -> list[Tensor]:
        """What is read of the checkpoint beside the tensor itself."""
        return []

    @abstractmethod
    def floats(self, first: int, last: int) -> np.ndarray:
        """Rows first..last, float32."""
