"""Blocks of rows of a checkpoint's tensors: read, checked, reordered, cast; hashed on the way."""

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ingot.checkpoint import identity as weights
from ingot.checkpoint import llama
from ingot.checkpoint.cast import NUMPY, Caster, has_nan, unpermute
from ingot.checkpoint.config import ModelConfig
from ingot.checkpoint.safetensors import Tensor, read_checkpoint
from ingot.files import digest, stream
from ingot.files.progress import Progress


class Rows:
    """The tensors of a checkpoint, in blocks of rows as a plan wants them.

    A shard whose identity is not on record yet is hashed while it is read, tensor by tensor: then
    `blocks` must be gone through from first to last, and each tensor's must be read.
    """

    def __init__(self, checkpoint: Path, config: ModelConfig, progress: str):
        self.checkpoint, self.config = checkpoint, config
        self.tensors = read_checkpoint(checkpoint)
        self.progress = Progress(progress, sum(t.nbytes for t in self.tensors.values()))
        self.overflow: dict[str, int] = {}  # values that became infinite, by tensor
        paths = {tensor.path for tensor in self.tensors.values()}
        fresh = [path for path in paths if not digest.known(path) and not weights.known(path)]
        self.shards = {path: weights.Shard(path) for path in fresh}
        self.hash, self.turns, self.tickets = hashlib.sha256(), stream.Turns(), 0
        self.files = {path: os.open(path, os.O_RDONLY) for path in paths}
        self.local, self.lock = threading.local(), threading.Lock()

    def __enter__(self) -> "Rows":
        return self

    def __exit__(self, *error) -> None:
        for file in self.files.values():
            os.close(file)

    def plans(self, dtype: str) -> list[llama.Plan]:
        """The plan of each tensor, as llama.cpp orders them: computed ones, then shard by shard."""
        planned = {plan.source or plan.name: plan for plan in llama.plans(self.config, dtype)}
        self.check({plan.source: plan.shape for plan in planned.values() if plan.source})
        computed = [plan for plan in planned.values() if plan.source is None]
        return computed + [planned[name] for name in self.tensors if name in planned]

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Stop unless the checkpoint holds just the tensors `expected`, each of its shape."""
        extra = [
            name
            for name in self.tensors
            if name not in expected and not name.endswith(llama.DROPPED)
        ]
        if extra:
            sys.exit(
                f"{self.tensors[extra[0]].path}: {len(extra)} tensors have no name in the new "
                f"file, first {extra[0]}; this architecture is not plain Llama or Mistral"
            )
        for name, shape in expected.items():
            if name not in self.tensors:
                sys.exit(
                    f"{self.checkpoint}: tensor {name} is in no shard, expected by config.json"
                )
            if self.tensors[name].shape != shape:
                tensor = self.tensors[name]
                sys.exit(
                    f"{tensor.path}: tensor {name} has shape {list(tensor.shape)}, expected "
                    f"{list(shape)} by config.json; the two do not belong together"
                )

    def blocks(self, plan: llama.Plan, first: int = 0, last: int | None = None) -> Iterator:
        """(first row, rows, read) of rows first..last; `read` gives the block's bytes, once.

        The bytes lie in a buffer of the reading thread: use them before it reads on.
        """
        tensor = self.tensors[plan.source]
        last = tensor.shape[0] if last is None else last
        size = stream.BLOCK if tensor.dtype == plan.type.name else stream.CAST_BLOCK
        step = max(1, size * tensor.shape[0] // max(tensor.nbytes, 1))
        if plan.heads:  # whole heads only
            step = max(1, step // self.config.head_dim) * self.config.head_dim
        for row in range(first, last, step):
            rows = min(step, last - row)
            ticket, self.tickets = self.tickets, self.tickets + 1
            yield row, rows, functools.partial(self._read, plan, tensor, ticket, row, rows)

    def _read(
        self, plan: llama.Plan, tensor: Tensor, ticket: int, first: int, rows: int
    ) -> memoryview:
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        row = columns * np.dtype(NUMPY[tensor.dtype]).itemsize
        buffer = stream.buffer_of(self.local, rows * row)
        file = self.files[tensor.path]
        stream.read_exactly(file, buffer, tensor.offset + first * row, tensor.path)
        self._hash(tensor, ticket, buffer, first == 0, first + rows == tensor.shape[0])
        bits = np.frombuffer(buffer, NUMPY[tensor.dtype]).reshape(rows, columns)
        if has_nan(bits, tensor.dtype):
            sys.exit(f"{tensor.path}: tensor {tensor.name} holds NaN; the checkpoint is damaged")
        if plan.heads:
            bits = unpermute(bits, self.config.head_dim)
        cast = self._caster(tensor.dtype, plan.type.name)
        data = memoryview(np.ascontiguousarray(cast(bits))).cast("B")
        if cast.overflowed:
            with self.lock:
                self.overflow[tensor.name] = self.overflow.get(tensor.name, 0) + cast.overflowed
            cast.overflowed = 0
        self.progress.add(len(buffer))
        return data

    def _hash(self, tensor: Tensor, ticket: int, data, first: bool, last: bool) -> None:
        with self.turns.take(ticket):
            if shard := self.shards.get(tensor.path):
                self.hash = hashlib.sha256() if first else self.hash
                self.hash.update(data)
                if last:
                    shard.found[tensor.name] = self.hash.hexdigest()

    def _caster(self, source: str, target: str) -> Caster:
        casters = self.local.__dict__.setdefault("casters", {})
        if (source, target) not in casters:
            casters[source, target] = Caster(source, target)
        return casters[source, target]

    def finish(self) -> None:
        """Put the shards' identities on record; say which values float16 could not hold."""
        for shard in self.shards.values():
            shard.finish()
        for tensor, count in sorted(self.overflow.items()):
            print(
                f"{tensor}: {count} values beyond 65504 became infinite in float16",
                file=sys.stderr,
            )
