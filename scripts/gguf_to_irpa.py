"""Rewrite a GGUF file as an IRPA archive.  Runs in envs/convert.

The tensors' bytes pass through a megabyte a thread, where they are hashed; the archive is
byte-identical to the one of sharktank's dump_gguf.
"""

import argparse
import functools
import os
import sys
import threading
from pathlib import Path

from ingot import digest, stream
from ingot import gguf as gguf_format
from ingot import irpa as irpa_format
from ingot.atomic import replacing
from ingot.progress import Progress


def gguf_to_irpa(gguf: Path, irpa: Path) -> None:
    properties, tensors = gguf_format.read(gguf)
    for tensor in tensors:
        if tensor.type.name not in irpa_format.TORCH:
            sys.exit(
                f"{gguf}: tensor {tensor.name} is {tensor.type.name}, expected one of "
                f"{', '.join(irpa_format.TORCH)}; ask for the f16, bf16 or f32 variant"
            )
    by_name = {tensor.name: tensor for tensor in tensors}
    tensors = [by_name[name] for name in irpa_format.tree_order(by_name)]
    front, entries, blobs, size = irpa_format.layout(
        {"schema": "GGUF", **properties}, [(t.name, t.type.name, t.shape) for t in tensors]
    )
    with replacing(irpa) as partial:
        source = os.open(gguf, os.O_RDONLY)
        out = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            stream.allocate(out, size, irpa)
            stream.write_exactly(out, memoryview(front), 0)
            progress = Progress(irpa.name, sum(t.nbytes for t in tensors))
            moves = [(t.offset, e.offset, e.nbytes) for t, e in zip(tensors, entries, strict=True)]
            digest.written[partial] = copy(gguf, source, out, front, moves, blobs, size, progress)
        finally:
            os.close(source)
            os.close(out)


def copy(gguf: Path, source: int, out: int, front: bytes, moves, blobs, size, progress) -> str:
    """Move the tensors, then write the blobs; the digest of it all, hashed as it passes by."""
    hashed, turns, local = stream.Digest(), stream.Turns(), threading.local()
    hashed.update(front, 0)

    def block(number: int, start: int, place: int, count: int) -> None:
        data = stream.buffer_of(local, count)
        stream.read_exactly(source, data, start, gguf)
        stream.write_exactly(out, data, place)
        with turns.take(number):
            hashed.update(data, place)
        progress.add(count)

    pieces = (
        (start + at, place + at, min(stream.BLOCK, count - at))
        for start, place, count in moves
        for at in range(0, count, stream.BLOCK)
    )
    jobs = (functools.partial(block, number, *piece) for number, piece in enumerate(pieces))
    stream.in_threads(jobs, [turns])
    for offset, text in sorted(blobs.items()):
        stream.write_exactly(out, memoryview(text), offset)
        hashed.update(text, offset)
    hashed.skip_to(size)
    return hashed.hash.hexdigest()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the file to read")
    parser.add_argument("--irpa", type=Path, required=True, help="the file to write")
    gguf_to_irpa(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
