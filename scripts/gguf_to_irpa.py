"""Rewrite a GGUF file as an IRPA archive.  Runs in envs/convert.

The tensors' bytes pass through a megabyte per thread, where they are hashed; the archive is
byte-identical to the one of sharktank's dump_gguf.
"""

import functools
import threading
from pathlib import Path
from typing import Annotated

from ingot.base import stream
from ingot.base.atomic import replacing_hashed
from ingot.base.options import step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_format
from ingot.formats.iree import irpa as irpa_format
from ingot.model.tensors.dtypes import FLOATS


def gguf_to_irpa(
    gguf: Annotated[Path, "the file to read"],
    irpa: Annotated[Path, "the file to write"],
) -> None:
    properties, tensors = gguf_format.read(gguf)
    for tensor in tensors:
        if tensor.type.name not in FLOATS:
            raise Refused(
                f"{gguf}: tensor {tensor.name} is {tensor.type.name}, expected one of "
                f"{', '.join(FLOATS)}; ask for the f16, bf16 or f32 variant"
            )
    by_name = {tensor.name: tensor for tensor in tensors}
    tensors = [by_name[name] for name in irpa_format.tree_order(by_name)]
    layout = irpa_format.layout(
        {"schema": "GGUF", **properties}, [(t.name, t.type.name, t.shape) for t in tensors]
    )
    with replacing_hashed(irpa) as partial, gguf.open("rb") as source:
        out = stream.Output(partial.path, layout.size, irpa)
        try:
            out.put(layout.head, 0)
            progress = Progress(irpa.name, sum(t.nbytes for t in tensors))
            moves = [
                (t.offset, e.offset, e.nbytes) for t, e in zip(tensors, layout.entries, strict=True)
            ]
            stream.in_threads(jobs(source.fileno(), gguf, out, moves, progress), [out.turns])
            for offset, text in sorted(layout.texts.items()):
                out.put(text, offset)
        finally:
            out.close()
        partial.sha256 = out.finish()


def jobs(source: int, gguf: Path, out: stream.Output, moves, progress: Progress):
    """One job per block of bytes, in the archive's order."""
    local = threading.local()

    def block(ticket: int, start: int, place: int, count: int) -> None:
        data = stream.buffer_of(local, count)
        stream.read_exactly(source, data, start, gguf)
        out.write(ticket, data, place)
        progress.add(count)

    for start, place, count in moves:
        for at in range(0, count, stream.BLOCK):
            size = min(stream.BLOCK, count - at)
            yield functools.partial(block, out.ticket(), start + at, place + at, size)


if __name__ == "__main__":
    step(gguf_to_irpa)
