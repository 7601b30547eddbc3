"""Rows of float32 as int8 and scales; one Quantizer per thread, since it owns its buffers."""

import numpy as np


class Quantizer:
    """Results are overwritten by the next call: fresh arrays would cost more than the arithmetic."""

    def __init__(self):
        self.buffers: dict[str, np.ndarray] = {}

    def _buffer(self, name: str, size: int, dtype: type = np.float32) -> np.ndarray:
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = np.empty(size, dtype)
        return self.buffers[name][:size]

    def rows(self, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """[n, in] to int8 [n, in] in -most..most, and float32 scales [n]."""
        plain = np.abs(values, out=self._buffer("plain", values.size).reshape(values.shape))
        scales = _scales(plain.max(axis=1), most)
        scaled = np.multiply(values, _inverse(scales)[:, None], out=plain)
        return self._rounded(scaled, np.int8), scales

    def blocks(self, values: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
        """[n, in] to uint8 [n, in] around 128, and float32 scales [n, in / block].

        The largest value of a block becomes 0, of either sign: so all 256 numbers are used.
        """
        across = self._buffer("across", values.size).reshape(block, -1)
        np.copyto(across, values.reshape(-1, block).T)  # numpy is slow along a short last axis
        most, least = across.max(axis=0), across.min(axis=0)
        scales = _scales(np.where(most >= -least, most, least), -128)
        scaled = self._buffer("plain", values.size).reshape(-1, block)
        np.multiply(values.reshape(-1, block), _inverse(scales)[:, None], out=scaled)
        scaled += np.float32(128)
        np.minimum(scaled, np.float32(255), out=scaled)
        return self._rounded(scaled, np.uint8), scales

    def _rounded(self, scaled: np.ndarray, dtype: type) -> np.ndarray:
        np.rint(scaled, out=scaled)
        found = self._buffer("bytes", scaled.size, np.uint8).view(dtype).reshape(scaled.shape)
        np.copyto(found, scaled, casting="unsafe")
        return found


LEAST = np.float32(3e-39)  # of a scale: the inverse of a smaller one is infinite


def _scales(largest: np.ndarray, most: int) -> np.ndarray:
    """0, as all its values become, where a group has nothing above 4e-37."""
    scales = largest / np.float32(most)
    return np.where(np.abs(scales) < LEAST, np.float32(0), scales)


def _inverse(scales: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)
