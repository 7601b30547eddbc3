"""What an adapter makes of its base's values, written without the code that merges them.

Verification only: whole matrices in float64, by the definition alone: W + scale * B @ A, rounded once.
"""

import functools
import json
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.safetensors import Tensor, outside, read_checkpoint
from ingot.model.tensors.dtypes import FLOATS, STORED
from ingot.parity.scaled_weights import scaled

WEIGHTS = "adapter_model.safetensors"
READING = threading.Lock()
PAIR = re.compile(r"base_model\.model\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")


@dataclass(frozen=True, eq=False)
class Adapted(Tensor):
    """A tensor of the base, in whose place stands what its adapter makes of it."""

    stored: str  # the dtype that the base has it in
    change: "Change | None" = None

    def changed(self, values: np.ndarray, first: int) -> np.ndarray:
        """Rows of it from row `first` on, as float32: with what is added, rounded as the base is."""
        found = values.astype(np.float64)
        if self.change:
            rows, columns = self.change.matrices()
            found += self.change.scale * (rows[first : first + len(values)] @ columns)
        return rounded(found, self.stored)


@dataclass(frozen=True)
class Change:
    """What is added to a weight's values: scale * rows @ columns."""

    scale: float
    pair: Callable[[], tuple[np.ndarray, np.ndarray]]  # read when it is asked for, one at a time

    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """rows [n, r] and columns [r, in]"""
        with READING:  # threads that ask at once read it once
            return _latest(self.pair)


@functools.lru_cache(maxsize=4)  # of the tensors that threads are at
def _latest(pair: Callable) -> tuple[np.ndarray, np.ndarray]:
    return pair()


def changes(checkpoint: Checkpoint) -> dict[str, Change]:
    """By the names of the base's tensors."""
    config = json.loads(checkpoint[ADAPTER].read_bytes())
    path = checkpoint[WEIGHTS]
    entries, pairs, found = _entries(path), {}, {}
    for name in entries:
        if pair := PAIR.fullmatch(name):
            pairs.setdefault((pair[1], bool(pair[2])), {})[pair[3]] = entries[name]
    for (module, embedding), pair in pairs.items():

        def read(pair=pair, embedding=embedding) -> tuple[np.ndarray, np.ndarray]:
            a, b = (_matrix(path, pair[letter]) for letter in "AB")
            return (a.T, b.T) if embedding else (b, a)

        rank = pair["A"][1][0]
        scale = _alpha(config, module) / (math.sqrt(rank) if config.get("use_rslora") else rank)
        found[outside(f"{module}.weight")] = Change(scale, read)
    return found


def sources(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The checkpoint's tensors, those that an adapter among its files changes as Adapted."""
    codes = {name: STORED[name] for name in ("U8", "F8_E4M3")}
    found = scaled(checkpoint, read_checkpoint(checkpoint, FLOATS | codes, merges=True))
    if ADAPTER not in checkpoint:
        return found
    dtypes = {name: tensor.dtype for name, tensor in found.items()}
    path = checkpoint[WEIGHTS]
    for name, (dtype, shape, offset, size) in _entries(path).items():
        if not PAIR.fullmatch(name) and ".original_module." not in name:
            # it stands in the place of the base's
            base = re.sub(r"\.(base_layer|modules_to_save)\.", ".", name)
            base = outside(base.removeprefix("base_model.model."))
            found[base] = Adapted(base, dtype, shape, path, offset, size, dtypes[base])
    for name, change in changes(checkpoint).items():
        one = found[name]
        place = (one.name, one.dtype, one.shape, one.path, one.offset, one.nbytes)
        found[name] = Adapted(*place, dtypes[name], change)
    return found


def _alpha(config: dict, module: str) -> float:
    asked = (config.get("alpha_pattern") or {}).items()
    by_name = (value for key, value in asked if re.match(rf"(.*\.)?({key})$", module))
    return next(by_name, config.get("lora_alpha", 8))


def _entries(path: Path) -> dict[str, tuple]:
    """name -> (dtype, shape, offset in the file, bytes)"""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(start - 8))
    return {
        name: (one["dtype"], tuple(one["shape"]), start + one["data_offsets"][0],
               one["data_offsets"][1] - one["data_offsets"][0])
        for name, one in said.items() if name != "__metadata__"
    }  # fmt: skip


def _matrix(path: Path, entry: tuple) -> np.ndarray:
    dtype, shape, offset, size = entry
    kind = np.dtype(FLOATS[dtype].numpy)
    raw = np.fromfile(path, kind, size // kind.itemsize, offset=offset)
    if dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64).reshape(shape)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 to the nearest values of a dtype, halves to the even one, as float32."""
    if dtype != "BF16":
        return values.astype(FLOATS[dtype].numpy).astype(np.float32)
    _, exponent = np.frexp(values)  # eight bits of mantissa, and none below 2^-133
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    return (np.rint(values / step) * step).astype(np.float32)
