"""The data files of an ONNX graph, streamed from a checkpoint: memory does not grow with the model."""

import functools
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ingot.base import stream
from ingot.formats.onnx.weights import BLOCKS, F16, ROWS, Layout, Stored
from ingot.model.checkpoint.rows import Rows
from ingot.model.specs import TensorSpec
from ingot.model.tensors.dtypes import TYPES
from ingot.model.tensors.int8 import Quantizer


def write(rows: Rows, layout: Layout, folder: Path, final: Path) -> dict[str, str]:
    """The data files in `folder`, which will be named `final`; the SHA-256 of each by its name."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 405B in float32 has 633 data files
    with ExitStack() as stack:
        outs = {}
        for name, size in layout.sizes.items():
            outs[name] = stream.Output(folder / name, size, final / name)
            stack.callback(outs[name].close)
        turns = [rows.turns, *(out.turns for out in outs.values())]
        for _ in rows.passes(*outs.values()):
            stream.in_threads(_jobs(rows, layout.stored, outs), turns)
        return {name: out.finish() for name, out in outs.items()}


def _jobs(
    rows: Rows, stored: list[Stored], outs: dict[str, stream.Output]
) -> Iterator[Callable[[], None]]:
    """One job per block of rows."""
    local = threading.local()

    def floats(read, tensor: Stored, first: int, ticket: int) -> None:
        row = tensor.nbytes // tensor.shape[0]
        outs[tensor.file].write(ticket, read(), tensor.start + first * row)

    def int8(read, tensor: Stored, first: int, tickets: tuple[int, int]) -> None:
        if not hasattr(local, "quantizer"):
            local.quantizer = Quantizer()
        values = np.frombuffer(read(), np.float32).reshape(-1, tensor.shape[1])
        if tensor.kind == ROWS:
            found, scales = local.quantizer.rows(values, tensor.most)
        else:
            block = tensor.shape[1] // tensor.per_row
            found, scales = local.quantizer.blocks(values, block)
        place = tensor.start + first * tensor.shape[1]
        outs[tensor.file].write(tickets[0], found.reshape(-1), place)
        place = tensor.scales_start + 4 * first * tensor.per_row
        outs[tensor.scales_file].write(tickets[1], scales.view(np.uint8), place)

    for tensor in stored:
        kind = TYPES["F16" if tensor.kind == F16 else "F32"]
        spec = TensorSpec(tensor.source, tensor.source, tensor.shape, kind)
        for first, _, read in rows.blocks(spec):
            ticket = outs[tensor.file].ticket()
            if tensor.kind in (ROWS, BLOCKS):
                tickets = ticket, outs[tensor.scales_file].ticket()
                yield functools.partial(int8, read, tensor, first, tickets)
            else:
                yield functools.partial(floats, read, tensor, first, ticket)
