"""Rewrite a Hugging Face checkpoint as one GGUF file.  Runs in envs/convert.

Streams: a megabyte per thread is in memory, whatever the model's size.  The file is byte-identical
to the one that llama.cpp's converter writes with the same name and license.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from ingot.base import stream
from ingot.base.atomic import replacing_hashed
from ingot.base.options import Architecture, step
from ingot.formats.gguf import header, metadata
from ingot.formats.gguf.file import TensorInfo
from ingot.formats.gguf.file import layout as gguf_layout
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.specs import computed


def safetensors_to_gguf(
    checkpoint: Checkpoint,
    gguf: Annotated[Path, "the file to write"],
    dtype: Annotated[str, "of the matrices", sorted(metadata.FILE_TYPE)],
    name: Annotated[str, "general.name"],
    pre_tokenizer: Annotated[str, "such as llama-bpe"],
    license: Annotated[str | None, "general.license"] = None,
    architecture: Architecture = None,
    allow_overflow: Annotated[bool, "let values become infinite, as llama.cpp does"] = False,
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
                    factors = computed(config, spec.name)
                    out.put(struct.pack(f"<{len(factors)}f", *factors), info.offset)
            for _ in rows.passes(out):
                work = jobs(rows, specs, layout.entries, out)
                stream.in_threads(work, [rows.turns, out.turns])
        finally:
            out.close()
        rows.finish()
        partial.sha256 = out.finish()


def jobs(rows: Rows, specs, infos, out: stream.Output) -> Iterator[Callable[[], None]]:
    """One job per block of rows, in the file's order."""

    def block(read: Callable[[], memoryview], ticket: int, info: TensorInfo, first: int) -> None:
        offset = info.offset + first * info.row_nbytes
        out.write(ticket, read(), offset)

    for spec, info in zip(specs, infos, strict=True):
        for first, _, read in rows.blocks(spec) if spec.source else ():
            yield functools.partial(block, read, out.ticket(), info, first)


if __name__ == "__main__":
    step(safetensors_to_gguf)
