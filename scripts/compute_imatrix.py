"""Compute an importance matrix: the mean square of each column that a weight meets in a text.

Runs in envs/llamacpp: the model by libllama, the file as llama-imatrix writes it.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.atomic import replacing
from ingot.base.options import step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_file
from ingot.formats.gguf import libllama
from ingot.formats.gguf.file import layout
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.quants import COUNTS, SUMS
from ingot.formats.gguf.structures import Tensor
from ingot.model.tensors.dtypes import TYPES

WINDOW = 512  # tokens, or the context where it is shorter
LEAST = 2  # windows, as llama-imatrix asks for
FEWEST = 16  # tokens of a product that is counted, as there
MUL_MAT = "MUL_MAT"


def compute_imatrix(
    gguf: Annotated[Path, "the model to run"],
    text: Annotated[Path, "what it reads"],
    imatrix: Annotated[Path, "the file to write"],
) -> None:
    data = text.read_bytes()
    sums = Sums()
    with libllama.Llama(gguf, WINDOW, watch=sums.watch) as model:
        ids = model.ids(data.decode(errors="replace"))
        length = min(WINDOW, model.trained_context)
        windows = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
        if len(windows) < LEAST:
            raise Refused(
                f"{text}: {len(ids)} tokens, expected {LEAST * length} or more; name a longer text"
            )
        progress = Progress(imatrix.name, len(windows), "windows")
        for window in windows:
            model.logits([*model.start, *window[len(model.start) :]])
            progress.add(1)
    names = sorted(sums.columns)
    blocks = [one for one in gguf_file.read(gguf)[1] if one.name.startswith("blk.")]
    wanted = sorted(one.name for one in blocks if len(one.shape) == 2)
    odd = [name for name in names if not np.isfinite(sums.columns[name]).all()]
    if names != wanted or odd:
        word = f"{odd[0]} meets values that are not finite" if odd else f"{len(names)} weights"
        raise Refused(f"{gguf}: {word}, expected {len(wanted)}, all finite; see the log")
    tensors, values = [], []
    for name in names:
        columns = sums.columns[name]
        tensors += [(name + SUMS, TYPES["F32"], (1, len(columns)))]
        tensors += [(name + COUNTS, TYPES["F32"], (1, 1))]
        values += [columns.tobytes(), np.float32(sums.counts[name]).tobytes()]
    dataset = f"sha256:{hashlib.sha256(data).hexdigest()}"
    kvs = [
        KV("general.type", "str", "imatrix"),
        KV("imatrix.datasets", "[str]", [dataset]),
        KV("imatrix.chunk_count", "u32", len(windows)),
        KV("imatrix.chunk_size", "u32", length),
    ]
    plan = layout(kvs, tensors)
    with replacing(imatrix) as partial, partial.open("wb") as file:
        file.write(plan.head)
        for info, raw in zip(plan.entries, values, strict=True):
            file.seek(info.offset)
            file.write(raw)
        file.truncate(plan.size)


class Sums:
    """The sum of squares of each column of what each weight of a block is multiplied with."""

    def __init__(self) -> None:
        self.columns: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}

    def watch(self, node: Tensor, ask: bool) -> bool:
        """Called for every node of the graph: first whether it is wanted, then with its values."""
        if libllama.operation(node) != MUL_MAT:
            return False
        weight, values = node.src[0].contents, node.src[1].contents
        name = weight.name.decode()
        wanted = name.startswith("blk.") and values.ne[1] >= FEWEST and values.type == libllama.F32
        if ask:
            return wanted
        rows = libllama.rows(values)
        squares = np.square(rows).sum(axis=0, dtype=np.float32)
        self.columns[name] = self.columns.get(name, np.float32(0)) + squares
        self.counts[name] = self.counts.get(name, 0) + len(rows)
        return True


if __name__ == "__main__":
    step(compute_imatrix)
