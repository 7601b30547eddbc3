"""A tensor whose values are worked out of what a checkpoint stores.  Verification only."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ingot.model.checkpoint.safetensors import Tensor


@dataclass(frozen=True, eq=False)
class Made(Tensor):
    """`shape` is [rows, columns] of its values."""

    @property
    @abstractmethod
    def beside(self) -> list[Tensor]:
        """The tensors of the checkpoint that are read beside the one of its name."""

    @abstractmethod
    def floats(self, first: int, last: int) -> np.ndarray:
        """Rows first..last, float32."""
