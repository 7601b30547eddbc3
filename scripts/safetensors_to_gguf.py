"""Rewrite a Hugging Face checkpoint as one GGUF file.  Runs in envs/convert.

Streams: a megabyte per thread is in memory, whatever the model's size.  The file is byte-identical
to the one that llama.cpp's converter writes with the same name and license.
"""

import argparse
import functools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from ingot.architecture.config import read_config
from ingot.architecture.specs import rope_freqs
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.checkpoint.rows import Rows
from ingot.entry import run
from ingot.files import stream
from ingot.files.atomic import replacing_hashed
from ingot.gguf import header, metadata
from ingot.gguf.file import TensorInfo
from ingot.gguf.file import layout as gguf_layout


def safetensors_to_gguf(
    checkpoint: Checkpoint,
    gguf: Path,
    dtype: str,
    name: str,
    pre_tokenizer: str,
    license: str | None = None,
    architecture: str | None = None,
    allow_overflow: bool = False,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, metadata.CAN)
    with (
        Rows(checkpoint, config, gguf.name, allow_overflow) as rows,
        replacing_hashed(gguf) as partial,
    ):
        specs = rows.specs(dtype)
        kvs = header.pairs(checkpoint, config, dtype, name, pre_tokenizer, license)
        layout = gguf_layout(kvs, [(spec.name, spec.type, spec.shape) for spec in specs])
        out = stream.Output(partial.path, layout.size, gguf)
        try:
            out.put(layout.head, 0)
            for spec, info in zip(specs, layout.entries, strict=True):
                if spec.source is None:  # computed ones come first
                    factors = rope_freqs(config)
                    out.put(struct.pack(f"<{len(factors)}f", *factors), info.offset)
            stream.in_threads(jobs(rows, specs, layout.entries, out), [rows.turns, out.turns])
        finally:
            out.close()
        rows.finish()
        partial.sha256 = out.finish()


def jobs(rows: Rows, specs, infos, out: stream.Output) -> Iterator[Callable[[], None]]:
    """One job per block of rows, in the file's order."""

    def block(read: Callable[[], memoryview], ticket: int, info: TensorInfo, first: int) -> None:
        offset = info.offset + first * (info.nbytes // info.shape[0])
        out.write(ticket, read(), offset)

    for spec, info in zip(specs, infos, strict=True):
        for first, _, read in rows.blocks(spec) if spec.source else ():
            yield functools.partial(block, read, out.ticket(), info, first)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--gguf", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--dtype", choices=sorted(metadata.FILE_TYPE), required=True, help="of the matrices"
    )
    parser.add_argument("--name", required=True, help="general.name")
    parser.add_argument("--pre-tokenizer", required=True, help="such as llama-bpe")
    parser.add_argument("--license", help="general.license")
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument(
        "--allow-overflow",
        action="store_true",
        help="let values become infinite, as llama.cpp does",
    )
    safetensors_to_gguf(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
