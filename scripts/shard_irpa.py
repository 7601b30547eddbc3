"""Cut a model into a tensor-parallel set of IRPA archives.  Runs in envs/convert.

From a checkpoint at once, or from an unsharded archive; one read and one write, a megabyte per thread
in memory.  The files are byte-identical to those of sharktank 3.6.0's shard_llm_dataset.
"""

import functools
import threading
from collections.abc import Callable, Collection, Iterator
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
from ingot.model.checkpoint import wanted
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
    only: wanted.Only = (),
    described: wanted.Described = "",
) -> None:
    if (checkpoint is None) == (irpa is None):
        raise Refused("--checkpoint and --irpa: expected one of them, what to divide")
    named = tensor_parallel.rank_files(root, tp)
    ranks = ranks or named
    if tp < 2 or ranks != named:
        raise Refused(f"{root}: {len(ranks)} ranks, expected {tp} > 1 named {root.stem}.rankN.irpa")
    if irpa:
        shard_archive(irpa, tp, root, dict(enumerate(ranks)))
    else:
        chosen = {n: ranks[n] for n in wanted.ranks(root, only, tp)}
        described = described if only else None
        shard_checkpoint(checkpoint, dtype, architecture, tp, root, chosen, described)


def shard_archive(archive: Path, tp: int, root: Path, ranks: dict[int, Path]) -> None:
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
    ranks: dict[int, Path],
    described: str | None,
) -> None:
    """`described`: of a checkpoint of which the bytes of these ranks come; what its record says."""
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
        if described is not None:
            cuts = tensor_parallel.splits(tensors)
            wanted.hold(root, tensor_parallel.root_archive(properties, cuts, tp), described)
            sources = {name: spec.source for name, spec in specs.items()}
            wanted.tell(rows, needs(cuts, sources, tp, ranks))
        write(properties, tensors, blocks, rows.passes, [rows.turns], tp, root, ranks)
        rows.finish()


def write(
    properties, tensors, blocks, passes, turns, tp: int, root: Path, ranks: dict[int, Path]
) -> None:
    """The set, from blocks(name, first row, last row) of each tensor, in so many `passes`: Rows.passes.

    `ranks`: the archives to write, by number.
    """
    cuts = tensor_parallel.splits(tensors)
    for cut in cuts:
        if cut.axis is not None and cut.shape[cut.axis] % tp:
            raise Refused(
                f"{root}: tensor {cut.name} has shape {list(cut.shape)}, expected axis {cut.axis} "
                f"to be a multiple of {tp}; choose a size that divides it"
            )
    with ExitStack() as stack:
        partial_root = stack.enter_context(replacing(root))  # the last to be put in place
        partials = {n: stack.enter_context(replacing_hashed(path)) for n, path in ranks.items()}
        outs, places = {}, {}
        for rank, path in ranks.items():
            layout = tensor_parallel.rank_layout(cuts, tp, rank)
            outs[rank] = stream.Output(partials[rank].path, layout.size, path)
            stack.callback(outs[rank].close)
            outs[rank].put(layout.head, 0)
            whole = f".shard.{rank}"
            places[rank] = {entry.name.removesuffix(whole): entry for entry in layout.entries}
        for _ in passes(*outs.values()):
            work = jobs(cuts, blocks, tp, outs, places)
            stream.in_threads(work, [*turns, *(out.turns for out in outs.values())])
        partial_root.write_bytes(tensor_parallel.root_archive(properties, cuts, tp))
        for rank, partial in partials.items():
            partial.sha256 = outs[rank].finish()


def parts(
    cuts: list[tensor_parallel.Cut], tp: int, ranks: Collection[int]
) -> Iterator[tuple[tensor_parallel.Cut, int, int, list[int]]]:
    """First row, end row and ranks of each part of a tensor; one cut along the columns has one part."""
    for cut in cuts:
        total = cut.shape[0]
        if cut.axis == 1:
            yield cut, 0, total, [*ranks]
            continue
        count = 1 if cut.axis is None else tp
        for rank in range(count):
            if rank in ranks:
                yield cut, rank * total // count, (rank + 1) * total // count, [rank]


def needs(
    cuts: list[tensor_parallel.Cut], source: dict[str, str], tp: int, ranks: Collection[int]
) -> Iterator[wanted.Part]:
    """What the ranks are made of; `source` names the checkpoint's tensor of each."""
    for cut, begin, end, its in parts(cuts, tp, ranks):
        for rank in its:
            yield source[cut.name], begin, end, *((rank, tp) if cut.axis == 1 else (0, 1))


def jobs(
    cuts, blocks, tp: int, outs: dict[int, stream.Output], places
) -> Iterator[Callable[[], None]]:
    """One job per block of rows; a block cut along the columns goes to every rank."""

    def along_rows(read, ticket: int, rank: int, offset: int) -> None:
        outs[rank].write(ticket, read(), offset)

    def along_columns(read, tickets: list[int], rows: int, offsets: list[int]) -> None:
        bits = np.frombuffer(read(), np.uint8).reshape(rows, tp, -1)
        for rank, ticket, offset in zip(outs, tickets, offsets, strict=True):
            outs[rank].write(ticket, np.ascontiguousarray(bits[:, rank]).reshape(-1), offset)

    for cut, begin, end, ranks in parts(cuts, tp, outs):
        row = prod(cut.shape[1:]) * FLOATS[cut.dtype].itemsize
        starts = [places[rank][cut.name].offset for rank in ranks]
        for first, rows, read in blocks(cut.name, begin, end):
            tickets = [outs[rank].ticket() for rank in ranks]
            if cut.axis == 1:
                offsets = [start + first * row // tp for start in starts]
                yield functools.partial(along_columns, read, tickets, rows, offsets)
            else:
                offset = starts[0] + (first - begin) * row
                yield functools.partial(along_rows, read, tickets[0], ranks[0], offset)


if __name__ == "__main__":
    step(shard_irpa)
