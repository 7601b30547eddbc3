"""What an adapter makes of its base's values, written without the code that merges them.

Verification only: whole matrices in float64, by the definition alone: W + scale * B @ A, rounded once.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.safetensors import Tensor, read_checkpoint
from ingot.model.tensors.dtypes import FLOATS

PAIR = re.compile(r"base_model\.model\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")


@dataclass(frozen=True, eq=False)
class Adapted(Tensor):
    """A tensor of the base, in whose place stands what its adapter makes of it."""

    stored: str  # the dtype that the base has it in
    rows: np.ndarray | None = None  # what is added to its values is scale * rows @ columns
    columns: np.ndarray | None = None
    scale: float = 0.0

    def changed(self, values: np.ndarray, first: int) -> np.ndarray:
        """Rows of it from row `first` on, as float32: with what is added, rounded as the base is."""
        found = values.astype(np.float64)
        if self.rows is not None:
            found += self.scale * (self.rows[first : first + len(values)] @ self.columns)
        return rounded(found, self.stored)


def sources(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The checkpoint's tensors, those that an adapter among its files changes as Adapted."""
    found = read_checkpoint(checkpoint, merges=True)
    if ADAPTER not in checkpoint:
        return found
    config = json.loads(checkpoint[ADAPTER].read_bytes())
    path = checkpoint["adapter_model.safetensors"]
    entries, pairs = _entries(path), {}
    for name, (dtype, shape, offset, size) in entries.items():
        if pair := PAIR.fullmatch(name):
            pairs.setdefault((pair[1], bool(pair[2])), {})[pair[3]] = name
            continue
        module = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        stored = found[module].dtype
        found[module] = Adapted(module, dtype, shape, path, offset, size, stored)
    for (module, embedding), names in pairs.items():
        a, b = (_matrix(path, entries[names[letter]]) for letter in "AB")
        scale = _alpha(config, module) / (math.sqrt(len(a)) if config.get("use_rslora") else len(a))
        rows, columns = (a.T, b.T) if embedding else (b, a)
        one = found[f"{module}.weight"]
        stored = one.stored if isinstance(one, Adapted) else one.dtype
        plain = (one.name, one.dtype, one.shape, one.path, one.offset, one.nbytes)
        found[f"{module}.weight"] = Adapted(*plain, stored, rows, columns, scale)
    return found


def _alpha(config: dict, module: str) -> float:
    asked = (config.get("alpha_pattern") or {}).items()
    by_name = (value for key, value in asked if re.match(rf"(.*\.)?({key})$", module))
    return next(by_name, config["lora_alpha"])


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
