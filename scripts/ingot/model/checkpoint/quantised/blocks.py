"""Jobs that write tensors of a checkpoint to a new file, as they are or as codes and scales.

What stands behind a tensor's codes (scales, zero points) is held until all of its codes are written.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil, prod
from pathlib import Path

import numpy as np

from ingot.base import stream
from ingot.model.checkpoint.rows import Rows
from ingot.model.specs import TensorSpec
from ingot.model.tensors.dtypes import FLOATS, STORED, TYPES
from ingot.model.tensors.layout import FileLayout

Shape = tuple[int, ...]
Part = tuple[str, str, Shape]  # name, dtype in safetensors' words, shape
Jobs = Iterator[Callable[[], None]]


@contextmanager
def outputs(layouts: dict[str, FileLayout], folder: Path, final: Path) -> Iterator[tuple]:
    """By name the files of these layouts in `folder`, which will be named `final`, and where tensors go.

    Their heads are written.
    """
    with ExitStack() as stack:
        outs = {}
        for name, layout in layouts.items():
            outs[name] = stream.Output(folder / name, layout.size, final / name)
            stack.callback(outs[name].close)
            outs[name].put(layout.head, 0)
        yield outs, {name: layout.entries for name, layout in layouts.items()}


def index(files: dict[str, list[Part]]) -> str:
    """The text of the index: which file holds which tensor."""
    places = {part[0]: name for name, parts in files.items() for part in parts}
    size = sum(nbytes(part) for parts in files.values() for part in parts)
    about = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(about, indent=2) + "\n"


def nbytes(part: Part) -> int:
    return prod(part[2]) * STORED[part[1]].itemsize


def spec_of(sources: str, shape: Shape, dtype: str = "F32") -> TensorSpec:
    """A tensor to read; {} in `sources` stands for each of shape[0] experts."""
    return TensorSpec(sources, sources, shape, TYPES[dtype])


def copied(rows: Rows, spec: TensorSpec, out: stream.Output, place: int) -> Jobs:
    """A tensor as it is, from `place` on."""

    def block(read: Callable, ticket: int, first: int) -> None:
        out.write(ticket, read(), place + first * row)

    row = prod(spec.source_shape[1:]) * spec.type.size
    for first, _, read in rows.blocks(spec):
        yield functools.partial(block, read, out.ticket(), first)


def coded(
    rows: Rows,
    spec: TensorSpec,
    out: stream.Output,
    parts: Sequence[Part],
    place: int,
    code: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    group: int = 1,
    last: bytes = b"",
) -> Jobs:
    """A tensor as `parts` from `place` on: its codes, what code() gives beside them, and `last`.

    code(values) takes rows [n, in], float32 or the bits of another dtype of `spec`, and gives codes and the
    others; `group` rows share one of these.
    """
    if not rows.due(spec):
        return
    codes, *others = parts
    count, columns = prod(spec.shape[:-1]), spec.shape[-1]
    each = nbytes(codes) // count
    held = [np.empty(nbytes(one), np.uint8) for one in others]
    sizes = [len(one) // ceil(count / group) for one in held]

    def block(read: Callable, ticket: int, first: int) -> None:
        values = np.frombuffer(read(), FLOATS[spec.type.name].bits).reshape(-1, columns)
        found, *more = code(values.view(np.float32) if spec.type.name == "F32" else values)
        for one, size, its in zip(held, sizes, more, strict=True):
            flat, start = its.reshape(-1).view(np.uint8), first // group * size
            one[start : start + len(flat)] = flat
        out.write(ticket, found.reshape(-1).view(np.uint8), place + first * each)

    for first, _, read in rows.blocks(spec, multiple=group):
        yield functools.partial(block, read, out.ticket(), first)
    yield functools.partial(out.write_last, out.ticket(), [*held, last], place + nbytes(codes))
