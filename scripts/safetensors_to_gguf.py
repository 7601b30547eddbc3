"""Rewrite a Hugging Face checkpoint as one GGUF file.  Runs in envs/convert.

Streams: a megabyte a thread is in memory, whatever the model's size.  The file is byte-identical
to the one that llama.cpp's converter writes with the same name and licence.
"""

import argparse
import functools
import hashlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ingot import digest, llama, stream, weights
from ingot.atomic import replacing
from ingot.cast import NUMPY, Caster, has_nan, unpermute
from ingot.checkpoint import ModelConfig, read_config, read_json, view
from ingot.gguf import KV, TensorInfo, header
from ingot.progress import Progress
from ingot.safetensors import Tensor, read_checkpoint
from ingot.vocabulary import vocabulary


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
    tensors = read_checkpoint(checkpoint)
    plans = in_file_order(checkpoint, config, dtype, tensors)
    kvs = metadata(checkpoint, config, dtype, name, pre, licence)
    head, infos, size = header(kvs, [(plan.name, plan.type, plan.shape) for plan in plans])
    overflow: dict[str, int] = {}
    with replacing(gguf) as partial:
        out = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        files = {t.path: os.open(t.path, os.O_RDONLY) for t in tensors.values()}
        names = Names(files)
        try:
            stream.allocate(out, size, gguf)
            stream.write_exactly(out, memoryview(head), 0)
            names.out.update(head, 0)
            progress = Progress(gguf.name, sum(t.nbytes for t in tensors.values()))
            work = jobs(config, plans, infos, tensors, files, out, names, progress, overflow)
            stream.in_threads(work, names.turns)
        finally:
            for file in (out, *files.values()):
                os.close(file)
        names.finish(partial, size)
    for tensor, count in sorted(overflow.items()):
        print(f"{tensor}: {count} values beyond 65504 became infinite in float16", file=sys.stderr)


class Names:
    """The digests of what is read and of what is written, taken as the blocks pass by.

    A shard whose identity is on record already is not hashed again.
    """

    def __init__(self, paths):
        self.out = stream.Digest()
        fresh = [path for path in paths if not digest.known(path) and not weights.known(path)]
        self.shards = {path: weights.Shard(path) for path in fresh}
        self.reading, self.writing = stream.Turns(), stream.Turns()
        self.turns = (self.reading, self.writing)
        self.tensor = hashlib.sha256()

    def read(self, tensor: Tensor, number: int, data: memoryview, first: bool, last: bool) -> None:
        with self.reading.take(number):
            if shard := self.shards.get(tensor.path):
                self.tensor = hashlib.sha256() if first else self.tensor
                self.tensor.update(data)
                if last:
                    shard.found[tensor.name] = self.tensor.hexdigest()

    def wrote(self, number: int, data: memoryview, offset: int) -> None:
        with self.writing.take(number):
            self.out.update(data, offset)

    def finish(self, partial: Path, size: int) -> None:
        self.out.skip_to(size)
        digest.written[partial] = self.out.hash.hexdigest()
        for shard in self.shards.values():
            shard.finish()


def metadata(checkpoint, config, dtype, name, pre, licence) -> list[KV]:
    generation = checkpoint / "generation_config.json"
    return [
        *llama.general(
            config, dtype, name, licence, read_json(generation) if generation.is_file() else {}
        ),
        *llama.hyperparameters(config, dtype),
        *vocabulary(checkpoint, config, pre),
    ]


def in_file_order(
    checkpoint: Path, config: ModelConfig, dtype: str, tensors: dict[str, Tensor]
) -> list[llama.Plan]:
    """The plan of each tensor, as llama.cpp orders them: computed ones, then shard by shard."""
    planned = {plan.source or plan.name: plan for plan in llama.plans(config, dtype)}
    extra = [name for name in tensors if name not in planned and not name.endswith(llama.DROPPED)]
    if extra:
        sys.exit(
            f"{tensors[extra[0]].path}: {len(extra)} tensors have no GGUF name, first {extra[0]}; "
            "this architecture is not plain Llama or Mistral"
        )
    for source, plan in planned.items():
        if plan.source and source not in tensors:
            sys.exit(f"{checkpoint}: tensor {source} is in no shard, expected by config.json")
        if plan.source and tensors[source].shape != plan.shape:
            found = list(tensors[source].shape)
            sys.exit(
                f"{tensors[source].path}: tensor {source} has shape {found}, expected "
                f"{list(plan.shape)} by config.json; the two do not belong together"
            )
    computed = [plan for plan in planned.values() if plan.source is None]
    return computed + [planned[name] for name in tensors if name in planned]


def jobs(
    config, plans, infos, tensors, files, out, names, progress, overflow
) -> Iterator[Callable]:
    """One job a block of rows, in the file's order: read, check, reorder, cast, write."""
    local = threading.local()
    lock = threading.Lock()

    def block(
        plan: llama.Plan, info: TensorInfo, tensor: Tensor, number: int, first: int, rows: int
    ):
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        row = columns * np.dtype(NUMPY[tensor.dtype]).itemsize
        buffer = stream.buffer_of(local, rows * row)
        stream.read_exactly(files[tensor.path], buffer, tensor.offset + first * row, tensor.path)
        names.read(tensor, number, buffer, first == 0, first + rows == tensor.shape[0])
        bits = np.frombuffer(buffer, NUMPY[tensor.dtype]).reshape(rows, columns)
        if has_nan(bits, tensor.dtype):
            sys.exit(f"{tensor.path}: tensor {tensor.name} holds NaN; the checkpoint is damaged")
        if plan.heads:
            bits = unpermute(bits, config.head_dim)
        cast = caster_of(local, tensor.dtype, plan.type.name)
        data = memoryview(np.ascontiguousarray(cast(bits))).cast("B")
        offset = info.offset + first * len(data) // rows
        stream.write_exactly(out, data, offset)
        names.wrote(number, data, offset)
        if cast.overflowed:
            with lock:
                overflow[tensor.name] = overflow.get(tensor.name, 0) + cast.overflowed
            cast.overflowed = 0
        progress.add(len(buffer))

    number = itertools.count()
    for plan, info in zip(plans, infos, strict=True):
        if plan.source is None:  # computed ones come first, before there are any threads' blocks
            data = memoryview(llama.rope_freqs(config))
            stream.write_exactly(out, data, info.offset)
            names.out.update(data, info.offset)
            continue
        tensor = tensors[plan.source]
        total = tensor.shape[0]
        size = stream.BLOCK if tensor.dtype == plan.type.name else stream.CAST_BLOCK
        step = max(1, size * total // max(tensor.nbytes, 1))
        if plan.heads:  # whole heads only
            step = max(1, step // config.head_dim) * config.head_dim
        for first in range(0, total, step):
            rows = min(step, total - first)
            yield functools.partial(block, plan, info, tensor, next(number), first, rows)


def caster_of(local: threading.local, source: str, target: str) -> Caster:
    """This thread's caster between two dtypes."""
    casters = local.__dict__.setdefault("casters", {})
    if (source, target) not in casters:
        casters[source, target] = Caster(source, target)
    return casters[source, target]


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
