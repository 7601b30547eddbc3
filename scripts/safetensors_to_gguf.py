"""Rewrite a Hugging Face checkpoint as one GGUF file.  Runs in envs/convert.

Streams: a megabyte a thread is in memory, whatever the model's size.  The file is byte-identical
to the one that llama.cpp's converter writes with the same name and licence.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from ingot.checkpoint import llama
from ingot.checkpoint.config import read_config, read_json, view
from ingot.checkpoint.rows import Rows
from ingot.files import digest, stream
from ingot.files.atomic import replacing
from ingot.gguf.file import KV, TensorInfo, header
from ingot.gguf.vocabulary import vocabulary


def safetensors_to_gguf(
    checkpoint: Path,
    gguf: Path,
    dtype: str,
    name: str,
    pre: str,
    licence: str | None = None,
    architecture: str | None = None,
) -> None:
    config = read_config(checkpoint / "config.json", architecture)
    with Rows(checkpoint, config, gguf.name) as rows, replacing(gguf) as partial:
        plans = rows.plans(dtype)
        kvs = metadata(checkpoint, config, dtype, name, pre, licence)
        head, infos, size = header(kvs, [(plan.name, plan.type, plan.shape) for plan in plans])
        out = stream.Output(partial, size, gguf)
        try:
            out.put(head, 0)
            for plan, info in zip(plans, infos, strict=True):
                if plan.source is None:  # computed ones come first
                    out.put(llama.rope_freqs(config), info.offset)
            stream.in_threads(jobs(rows, plans, infos, out), [rows.turns, out.turns])
        finally:
            out.close()
        rows.finish()
        digest.written[partial] = out.finish()


def jobs(rows: Rows, plans, infos, out: stream.Output) -> Iterator[Callable[[], None]]:
    """One job a block of rows, in the file's order."""

    def block(read: Callable[[], memoryview], ticket: int, info: TensorInfo, first: int) -> None:
        offset = info.offset + first * (info.nbytes // info.shape[0])
        out.write(ticket, read(), offset)

    for plan, info in zip(plans, infos, strict=True):
        for first, _, read in rows.blocks(plan) if plan.source else ():
            yield functools.partial(block, read, out.ticket(), info, first)


def metadata(checkpoint, config, dtype, name, pre, licence) -> list[KV]:
    generation = checkpoint / "generation_config.json"
    return [
        *llama.general(
            config, dtype, name, licence, read_json(generation) if generation.is_file() else {}
        ),
        *llama.hyperparameters(config, dtype),
        *vocabulary(checkpoint, config, pre),
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", type=Path, nargs="+", required=True, help="a folder, or files of one"
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the file to write")
    parser.add_argument("--dtype", choices=sorted(llama.FILE_TYPE), required=True)
    parser.add_argument("--name", required=True, help="general.name")
    parser.add_argument("--pre", required=True, help="the pre-tokenizer, such as llama-bpe")
    parser.add_argument("--licence", help="general.license")
    parser.add_argument("--architecture", help="what config.json must say")
    options = vars(parser.parse_args(argv))
    with view(options.pop("checkpoint")) as checkpoint:
        safetensors_to_gguf(checkpoint, **options)


if __name__ == "__main__":
    main()
