"""Cut a model into a tensor-parallel set of IRPA archives.  Runs in envs/convert.

From a checkpoint at once, or from an unsharded archive; one read and one write, a megabyte per thread
in memory.  The files are byte-identical to those of sharktank 3.6.0's shard_llm_dataset.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base import stream
from ingot.base.atomic import replacing, replacing_hashed
from ingot.base.options import Architecture, step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.formats.iree import irpa, tensor_parallel
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.specs import head_of_tied
from ingot.model.tensors.dtypes import FLOATS

Block = tuple[int, int, Callable[[], memoryview]]  # first row, rows, what gives their bytes


class Archive:
    """The tensors of an unsharded archive, in blocks of rows: what Rows is to a checkpoint."""

    def __init__(self, path: Path, progress: str):
        self.path = path
        self.properties, entries = irpa.read(path)
        self.entries = {entry.name: entry for entry in entries}
        self.file, self.local = path.open("rb"), threading.local()
        self.progress = Progress(progress, sum(entry.nbytes for entry in entries))

    def blocks(self, name: str, first: int, last: int) -> Iterator[Block]:
        entry = self.entries[name]
        row = entry.nbytes // entry.shape[0]
        step = max(1, stream.BLOCK // row)
        for start in range(first, last, step):
            rows = min(step, last - start)
            place = entry.offset + start * row
            yield start, rows, functools.partial(self._read, place, rows * row)

    def _read(self, offset: int, count: int) -> memoryview:
        data = stream.buffer_of(self.local, count)
        stream.read_exactly(self.file.fileno(), data, offset, self.path)
        self.progress.add(count)
        return data


def shard_irpa(
    tp: Annotated[int, "tensor parallel size, from 2"],
    root: Annotated[Path, "the root archive to write"],
    checkpoint: Checkpoint | None = None,
    irpa: Annotated[Path | None, "an unsharded archive, in place of a checkpoint"] = None,
    dtype: Annotated[str, "to write", ("f16", "bf16", "f32")] = "f16",
    architecture: Architecture = None,
    ranks: Annotated[list[Path], "the ranks' archives (default: ROOT.rankN.irpa)"] = (),
) -> None:
    if (checkpoint is None) == (irpa is None):
        raise Refused("--checkpoint and --irpa: expected one of them, what to divide")
    named = tensor_parallel.rank_files(root, tp)
    ranks = ranks or named
    if tp < 2 or ranks != named:
        raise Refused(f"{root}: {len(ranks)} ranks, expected {tp} > 1 named {root.stem}.rankN.irpa")
    if irpa:
        shard_archive(irpa, tp, root, ranks)
    else:
        shard_checkpoint(checkpoint, dtype, architecture, tp, root, ranks)


def shard_archive(archive: Path, tp: int, root: Path, ranks: list[Path]) -> None:
    source = Archive(archive, root.name)
    if biased := next((name for name in source.entries if name.endswith(".bias")), None):
        raise Refused(
            f"{archive}: holds {biased}, expected no biases: each rank would add the whole"
        )
    if irpa.HEAD not in source.entries:  # tied embeddings
        source.entries[irpa.HEAD] = source.entries[irpa.EMBEDDING]
    tensors = [(name, e.dtype, e.shape) for name, e in source.entries.items()]
    with source.file:
        once = lambda *_: [None]  # noqa: E731
        write(source.properties, tensors, source.blocks, once, [], tp, root, ranks)


def shard_checkpoint(
    checkpoint: Checkpoint,
    dtype: str,
    architecture: str | None,
    tp: int,
    root: Path,
    ranks: list[Path],
) -> None:
    config = read_config(checkpoint["config.json"], architecture, tensor_parallel.can(tp))
    if reason := tensor_parallel.why_not(config, tp):
        raise Refused(f"{checkpoint['config.json']}: {reason}")
    with Rows(checkpoint, config, root.name) as rows:
        specs = {spec.name: spec for spec in rows.specs(dtype)}
        if config.tied:
            head = head_of_tied(config, dtype)
            specs[head.name] = head

        def blocks(name: str, first: int, last: int) -> Iterator[Block]:
            return rows.blocks(specs[name], first, last)

        tensors = [(spec.name, spec.type.name, spec.shape) for spec in specs.values()]
        properties = metadata.properties(config, dtype)
        write(properties, tensors, blocks, rows.passes, [rows.turns], tp, root, ranks)
        rows.finish()


def write(
    properties, tensors, blocks, passes, turns, tp: int, root: Path, ranks: list[Path]
) -> None:
    """The set, from blocks(name, first row, last row) of each tensor, in so many `passes`: Rows.passes."""
    cuts = tensor_parallel.splits(tensors)
    for cut in cuts:
        if cut.axis is not None and cut.shape[cut.axis] % tp:
            raise Refused(
                f"{root}: tensor {cut.name} has shape {list(cut.shape)}, expected axis {cut.axis} "
                f"to be a multiple of {tp}; choose a size that divides it"
            )
    with ExitStack() as stack:
        partial_root = stack.enter_context(replacing(root))  # the last to be put in place
        partials = [stack.enter_context(replacing_hashed(path)) for path in ranks]
        outs, places = [], []
        for rank, (path, partial) in enumerate(zip(ranks, partials, strict=True)):
            layout = tensor_parallel.rank_layout(cuts, tp, rank)
            outs.append(stream.Output(partial.path, layout.size, path))
            stack.callback(outs[-1].close)
            outs[-1].put(layout.head, 0)
            whole = f".shard.{rank}"
            places.append({entry.name.removesuffix(whole): entry for entry in layout.entries})
        for _ in passes(*outs):
            work = jobs(cuts, blocks, tp, outs, places)
            stream.in_threads(work, [*turns, *(out.turns for out in outs)])
        partial_root.write_bytes(tensor_parallel.root_archive(properties, cuts, tp))
        for partial, out in zip(partials, outs, strict=True):
            partial.sha256 = out.finish()


def jobs(cuts, blocks, tp: int, outs: list[stream.Output], places) -> Iterator[Callable[[], None]]:
    """One job per block of rows; a block cut along the columns goes to every rank."""

    def along_rows(read, ticket: int, rank: int, offset: int) -> None:
        outs[rank].write(ticket, read(), offset)

    def along_columns(read, tickets: list[int], rows: int, offsets: list[int]) -> None:
        bits = np.frombuffer(read(), np.uint8).reshape(rows, tp, -1)
        for rank, (ticket, offset) in enumerate(zip(tickets, offsets, strict=True)):
            outs[rank].write(ticket, np.ascontiguousarray(bits[:, rank]).reshape(-1), offset)

    for cut in cuts:
        total = cut.shape[0]
        row = prod(cut.shape[1:]) * FLOATS[cut.dtype].itemsize
        if cut.axis == 1:
            starts = [places[rank][cut.name].offset for rank in range(tp)]
            for first, rows, read in blocks(cut.name, 0, total):
                offsets = [start + first * row // tp for start in starts]
                tickets = [out.ticket() for out in outs]
                yield functools.partial(along_columns, read, tickets, rows, offsets)
            continue
        ranks = 1 if cut.axis is None else tp
        for rank in range(ranks):
            begin, start = rank * total // ranks, places[rank][cut.name].offset
            for first, _, read in blocks(cut.name, begin, begin + total // ranks):
                offset = start + (first - begin) * row
                yield functools.partial(along_rows, read, outs[rank].ticket(), rank, offset)


if __name__ == "__main__":
    step(shard_irpa)
