"""Cut a Hugging Face checkpoint into a TensorRT-LLM checkpoint.  Runs in envs/convert.

One read and one write, a megabyte per thread in memory, neither torch nor tensorrt_llm.  The tensors
are bit for bit those of NVIDIA's ModelOpt 0.47.0, but for routers, which that rounds to float16 first.
"""

import functools
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base import sealed, stream
from ingot.base.atomic import replacing
from ingot.base.options import Architecture, step
from ingot.base.refused import Refused
from ingot.formats.tensorrt import trtllm
from ingot.model.checkpoint import wanted
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.specs import TensorSpec
from ingot.model.tensors.dtypes import TYPES


def safetensors_to_trtllm(
    checkpoint: Checkpoint,
    trtllm_checkpoint: Annotated[Path, "the directory to write"],
    mapping: trtllm.Mapping,
    dtype: Annotated[str, "to write", sorted(trtllm.DTYPES)] = "f16",
    architecture: Architecture = None,
    only: wanted.Only = (),
    described: wanted.Described = "",
) -> None:
    config = read_config(checkpoint["config.json"], architecture, trtllm.CAN)
    if reason := trtllm.why_not(config, mapping):
        raise Refused(f"{checkpoint['config.json']}: {reason}")
    cuts, ranks = trtllm.cuts(config, mapping), wanted.ranks(trtllm_checkpoint, only, mapping.world)
    with (
        Rows(checkpoint, config, trtllm_checkpoint.name) as rows,
        replacing(trtllm_checkpoint) as partial,
        ExitStack() as stack,
    ):
        rows.check({cut.source: cut.shape for cut in cuts})
        partial.mkdir(exist_ok=True)
        document = trtllm.document(config, mapping, dtype)
        text = json.dumps(document, indent=2) + "\n"
        if only:
            wanted.hold(trtllm_checkpoint / "config.json", text.encode(), described)
            wanted.tell(rows, needs(cuts, mapping, ranks))
        outs, offsets = {}, {}
        for rank in ranks:
            tensors = trtllm.shapes(trtllm.of_stage(cuts, rank // mapping.tp))
            layout = trtllm.file_layout(tensors, document["dtype"])
            path = partial / f"rank{rank}.safetensors"
            outs[rank] = stream.Output(path, layout.size, trtllm_checkpoint / path.name)
            stack.callback(outs[rank].close)
            outs[rank].put(layout.head, 0)
            offsets[rank] = layout.entries
        for _ in rows.passes(*outs.values()):
            work = jobs(rows, cuts, dtype, mapping, outs, offsets)
            stream.in_threads(work, [rows.turns, *(out.turns for out in outs.values())])
        rows.finish()
        hashed = {f"rank{rank}.safetensors": out.finish() for rank, out in outs.items()}
        (partial / "config.json").write_text(text)
        sealed.seal(partial, hashed)


def parts(
    cuts: list[trtllm.Cut], mapping: trtllm.Mapping, ranks: Collection[int]
) -> Iterator[tuple[trtllm.Cut, int, int, list[int]]]:
    """First row, end row, and those of the ranks that hold it, of each part of a tensor."""
    for cut in cuts:
        found = [(0, cut.shape[0], list(range(mapping.tp)))]
        if cut.axis == 0:
            found = list(trtllm.places(cut, mapping.tp))
        for begin, end, local in found:
            its = [rank for one in local if (rank := mapping.rank(cut.stage, one)) in ranks]
            if its:
                yield cut, begin, end, its


def needs(
    cuts: list[trtllm.Cut], mapping: trtllm.Mapping, ranks: Collection[int]
) -> Iterator[wanted.Part]:
    """What the ranks are made of."""
    for cut, begin, end, its in parts(cuts, mapping, ranks):
        columns = [(rank % mapping.tp, mapping.tp) for rank in its]
        for part in columns if cut.axis == 1 else [(0, 1)]:
            yield cut.source, begin, end, *part


def jobs(
    rows: Rows, cuts: list[trtllm.Cut], dtype: str, mapping: trtllm.Mapping, outs, offsets
) -> Iterator[Callable[[], None]]:
    """One job per block of rows, read once and written to every rank that has a part of it."""
    tp, said = mapping.tp, trtllm.DTYPES[dtype]

    def whole(read, ranks: list[int], tickets: list[int], places: list[int]) -> None:
        data = read()
        for rank, ticket, place in zip(ranks, tickets, places, strict=True):
            outs[rank].write(ticket, data, place)

    def columns(read, count, ranks: list[int], tickets: list[int], places: list[int]) -> None:
        bits = np.frombuffer(read(), np.uint8).reshape(count, tp, -1)
        for rank, ticket, place in zip(ranks, tickets, places, strict=True):
            data = np.ascontiguousarray(bits[:, rank % tp]).reshape(-1)
            outs[rank].write(ticket, data, place)

    for cut, begin, end, ranks in parts(cuts, mapping, outs):
        kind = TYPES[trtllm.stored(cut.name, said)]
        spec = TensorSpec(cut.source, cut.name, cut.shape, kind)
        row = prod(cut.columns()) * kind.size
        for first, count, read in rows.blocks(spec, begin, end):
            place = (cut.start + first - begin) * row
            places = [offsets[rank][cut.name] + place for rank in ranks]
            tickets = [outs[rank].ticket() for rank in ranks]
            if cut.axis == 1:
                yield functools.partial(columns, read, count, ranks, tickets, places)
            else:
                yield functools.partial(whole, read, ranks, tickets, places)


if __name__ == "__main__":
    step(safetensors_to_trtllm)
