"""Rewrite a GGUF file as an IRPA archive.  Runs in envs/convert.

The bytes of the tensors go from file to file without passing through memory; the archive is
byte-identical to the one of sharktank's dump_gguf.
"""

import argparse
import os
import sys
from pathlib import Path

from ingot import gguf as gguf_format
from ingot import irpa as irpa_format
from ingot import stream
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
            for tensor, entry in zip(tensors, entries, strict=True):
                stream.copy_range(source, out, tensor.offset, entry.offset, entry.nbytes)
                progress.add(entry.nbytes)
            for offset, text in blobs.items():
                stream.write_exactly(out, memoryview(text), offset)
        finally:
            os.close(source)
            os.close(out)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the file to read")
    parser.add_argument("--irpa", type=Path, required=True, help="the file to write")
    gguf_to_irpa(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
