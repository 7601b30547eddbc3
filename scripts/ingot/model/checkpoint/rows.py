"""Blocks of rows of a checkpoint's tensors: read, checked, reordered, cast; hashed on the way."""

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from math import prod

import numpy as np

from ingot.base import memo, pieces, stream
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.checkpoint import adapter, head_rows, identity, scales, stacked, whole
from ingot.model.checkpoint.arrivals import Arrivals
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.merge import Merger
from ingot.model.checkpoint.safetensors import Tensor, read_checkpoint
from ingot.model.config import ModelConfig, say_unknown
from ingot.model.specs import HEAD, TensorSpec, shapes_of, specs_of
from ingot.model.tensors.cast import Caster, as_float32, not_finite, unpermute
from ingot.model.tensors.dtypes import FLOATS, STORED


class Rows:
    """The tensors of a checkpoint, in blocks of rows as a spec wants them.

    A shard whose identity is not on record yet is hashed while it is read, tensor by tensor: then
    `blocks` must be gone through from first to last, and each tensor's must be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        progress: str,
        allow_overflow: bool = False,
        advice: str = "ask for bf16 or f32, or set allow_overflow",
    ):
        self.checkpoint, self.config, self.allow_overflow = checkpoint, config, allow_overflow
        self.advice = advice  # where float16 cannot hold a value
        say_unknown(checkpoint["config.json"], config.family)
        self.tensors = read_checkpoint(checkpoint, config.stored, merges=True)
        self.loras: dict[str, adapter.Lora] = {}
        self.replaced: dict[str, str] = {}  # by an adapter's: name -> dtype that the base has
        if found := adapter.read(checkpoint):
            known = shapes_of(config)
            shapes = {name: one.shape for name, one in self.tensors.items() if name in known}
            found.fits(shapes, adapter.TIED if config.tied else ())
            self.loras = found.loras
            self.replaced = {name: self.tensors[name].dtype for name in found.replaced}
            self.tensors |= found.replaced
        self.progress = Progress(progress, sum(t.nbytes for t in self.tensors.values()))
        self.overflow: dict[str, int] = {}  # values that became infinite, by tensor
        paths = {tensor.path for tensor in self.tensors.values()}
        self.coming: Arrivals | None = None
        if where := pieces.folder():
            self.coming = Arrivals(where, os.environ[pieces.WRITER], self.tensors)
        here = () if self.coming else paths
        fresh = [path for path in here if not memo.known(path) and not identity.known(path)]
        self.shards = {path: identity.ShardDigest(path) for path in fresh}
        self.hash, self.turns, self.tickets = hashlib.sha256(), stream.Turns(), 0
        self.files = {path: os.open(path, os.O_RDONLY) for path in paths}
        self.local, self.lock = threading.local(), threading.Lock()
        self.experts = stacked.Latest()
        self.scales_of = functools.lru_cache(maxsize=16)(
            scales.of
        )  # of weights that threads are at

    def __enter__(self) -> "Rows":
        return self

    def __exit__(self, *error) -> None:
        for file in self.files.values():
            os.close(file)

    def specs(self, dtype: str) -> list[TensorSpec]:
        """The spec of each tensor, as llama.cpp orders them: computed ones, then shard by shard."""
        specs = specs_of(self.config, dtype)
        whole.hold(self.checkpoint, self.config, self.tensors, bool(self.coming))
        self._say_dropped()
        codes = any(tensor.dtype == scales.CODES for tensor in self.tensors.values())
        if codes and (self.loras or self.replaced):
            raise Refused(
                f"{self.checkpoint[ADAPTER]}: its base is FP8, expected floats; name the model that the "
                "base was quantised from"
            )
        joined = {name for spec in specs if spec.stack for name in spec.sources}
        if changed := sorted(joined & {*self.replaced}):
            raise Refused(
                f"{self.checkpoint[ADAPTER]}: changes {changed[0]}, the experts of a layer in one "
                "tensor, which Ingot cannot merge; merge it by peft, and add the folder"
            )
        computed = [spec for spec in specs if spec.source is None]
        stored = [spec for spec in specs if spec.source]
        place = {name: number for number, name in enumerate(self.tensors)}
        # all but scales, and what is left out
        read = {name for spec in specs for name in spec.sources}
        self.progress.total = sum(self.tensors[name].nbytes for name in read)
        known: dict[str, int] = {}
        # the experts of a layer come together: at the last one's place
        for spec in stored:
            layer = spec.source.partition("{}")[0]
            known[layer] = max(known.get(layer, 0), *(place[name] for name in spec.sources))

        def order(spec: TensorSpec) -> tuple[bool, int]:  # those of MXFP4 before all others
            return not spec.packed, known[spec.source.partition("{}")[0]]

        return computed + sorted(stored, key=order)

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Stop unless the checkpoint holds just the tensors `expected`, each of its shape."""
        whole.check(self.checkpoint, self.config, self.tensors, expected, bool(self.coming))
        self._say_dropped()

    def _say_dropped(self) -> None:
        if self.config.tied and HEAD in self.tensors:
            print(
                f"{HEAD}: left out, since tie_word_embeddings is true: so does transformers",
                file=sys.stderr,
            )

    def passes(self, *outs: stream.Output) -> Iterator[None]:
        """Turns in which a writer goes through all of `outs`: one, of a checkpoint that is here.

        If it comes in pieces, each has its turn, in which `blocks` gives what is due by then.
        """
        if self.coming:
            yield from self.coming.passes(outs)
        else:
            yield

    def due(self, spec: TensorSpec) -> bool:
        """Is `spec` written in this turn?"""
        if self.coming is None:
            return True
        key = (spec.source, spec.packed)
        if key not in self.coming.turns:
            factors = [one for one in map(scales.name_of, spec.sources) if one in self.tensors]
            self.coming.note(key, [*spec.sources, *factors])
        return self.coming.turns[key] == self.coming.now

    def blocks(
        self, spec: TensorSpec, first: int = 0, last: int | None = None, multiple: int = 1
    ) -> Iterator:
        """(first row, rows, read) of rows first..last; `read` gives the block's bytes, once.

        The bytes lie in a buffer of the reading thread: use them before it reads on.  But for the last
        block, `multiple` divides its rows.
        """
        if not self.due(spec):
            return
        if spec.stack or spec.part:
            yield from (stacked if spec.stack else head_rows).blocks(self, spec)
            return
        if spec.heads:  # whole heads only
            multiple = self.config.head_dim
        for number, name in enumerate(spec.sources):
            tensor = self.tensors[name]
            end = tensor.shape[0] if last is None else last
            before = number * tensor.shape[0]
            yield from self._blocks(spec, name, before, first, end, multiple)

    def _blocks(
        self, spec: TensorSpec, name: str, before: int, first: int, last: int, multiple: int
    ) -> Iterator:
        """Those of one of its sources, `before` rows of others in front of it."""
        tensor = self.tensors[name]
        cast = self._caster(self.replaced.get(name, tensor.dtype), spec.type.name)
        once = cast.kernel or cast.source == cast.target  # else a cache must hold it
        size = stream.BLOCK if once and not spec.plus else stream.CAST_BLOCK
        if tensor.dtype == scales.CODES:
            size //= 2  # as float32 they take four times as much, as others twice
        step = max(1, size * tensor.shape[0] // max(tensor.nbytes, 1))
        step = max(1, step // multiple) * multiple
        for row in range(first, last, step):
            rows = min(step, last - row)
            read = functools.partial(self._read, spec, name, self.ticket(), row, rows)
            yield before + row, rows, read

    def ticket(self) -> int:
        """The next block's number; drawn where the blocks are handed out, one after another."""
        found, self.tickets = self.tickets, self.tickets + 1
        return found

    def _read(self, spec: TensorSpec, name: str, ticket: int, first: int, rows: int) -> memoryview:
        tensor = self.tensors[name]
        columns = prod(tensor.shape[1:])
        row = columns * STORED[tensor.dtype].itemsize
        buffer = stream.buffer_of(self.local, rows * row)
        file = self.files[tensor.path]
        stream.read_exactly(file, buffer, tensor.offset + first * row, tensor.path)
        self._hash(tensor, ticket, buffer, first == 0, first + rows == tensor.shape[0])
        bits = np.frombuffer(buffer, STORED[tensor.dtype].bits).reshape(rows, columns)
        bits, dtype = self.values(name, bits, first)
        if spec.heads:
            bits = unpermute(bits, self.config.head_dim)
        if spec.plus:
            bits = (as_float32(bits, dtype) + np.float32(spec.plus)).view(np.uint32)
            dtype = "F32"
        self.progress.add(len(buffer))
        return self._cast(tensor, bits, dtype, spec)

    def passed(self, ticket: int) -> None:
        """A block that is hashed later lets those behind it be hashed."""
        with self.turns.take(ticket):
            pass

    def cast(self, tensor: Tensor, bits: np.ndarray, dtype: str, spec: TensorSpec) -> memoryview:
        """Values that somebody read of a tensor, as the spec's bytes, in this thread's buffer."""
        self._hold_finite(tensor, bits, dtype)
        return self._cast(tensor, bits, dtype, spec)

    def values(self, name: str, bits: np.ndarray, first: int) -> tuple[np.ndarray, str]:
        """What is stored of a tensor's rows from `first` on as values: their bits, and their dtype."""
        tensor = self.tensors[name]
        if tensor.dtype == scales.CODES:
            factors = self.scales_of(self.tensors[scales.name_of(name)])
            room = self.local.__dict__.get("values", np.empty(0, np.float32))
            if room.size < bits.size:  # a fresh array for each block would cost more than it holds
                room = self.local.values = np.empty(bits.size, np.float32)
            out = room[: bits.size].reshape(bits.shape)
            values = scales.multiplied(bits, factors, self.config.scaled, first, out)
            self._hold_finite(tensor, values.view(np.uint32), "F32")
            return values.view(np.uint32), "F32"
        self._hold_finite(tensor, bits, tensor.dtype)
        return self._adapted(name, bits, tensor, first)

    def _hold_finite(self, tensor: Tensor, bits: np.ndarray, dtype: str) -> None:
        if odd := not_finite(bits, dtype):
            raise Refused(
                f"{tensor.path}: tensor {tensor.name} holds {odd}; the checkpoint is damaged"
            )

    def _cast(self, tensor: Tensor, bits: np.ndarray, dtype: str, spec: TensorSpec) -> memoryview:
        cast = self._caster(dtype, spec.type.name)
        data = memoryview(np.ascontiguousarray(cast(bits))).cast("B")
        if cast.overflowed:
            if not self.allow_overflow:
                most = np.abs(as_float32(bits, dtype)).max()
                raise Refused(
                    f"{tensor.path}: tensor {tensor.name} holds {most:.3g}, expected at most 65504 for "
                    f"{spec.type.name}; {self.advice}"
                )
            with self.lock:
                self.overflow[tensor.name] = self.overflow.get(tensor.name, 0) + cast.overflowed
            cast.overflowed = 0
        return data

    def _adapted(
        self, name: str, bits: np.ndarray, tensor: Tensor, first: int
    ) -> tuple[np.ndarray, str]:
        """Rows of a tensor as the adapter makes them, in the dtype of the base: their bits, and it."""
        dtype = self.replaced.get(name, tensor.dtype)
        if dtype != tensor.dtype:
            cast = self._caster(tensor.dtype, dtype)(bits)
            bits = cast.view(FLOATS[dtype].bits).reshape(bits.shape)
        odd = not_finite(bits, dtype) if dtype != tensor.dtype else None
        if not odd and (lora := self.loras.get(name)):
            merger = self._merger()
            bits, odd = merger(lora, bits, dtype, first), merger.odd
        if odd:
            raise Refused(
                f"{tensor.path}: tensor {tensor.name} holds {odd} once its adapter is merged; "
                "merge it in float32 by peft"
            )
        return bits, dtype

    def _hash(self, tensor: Tensor, ticket: int, data, first: bool, last: bool) -> None:
        with self.turns.take(ticket):
            if shard := self.shards.get(tensor.path):
                self.hash = hashlib.sha256() if first else self.hash
                self.hash.update(data)
                if last:
                    shard.found[tensor.name] = self.hash.hexdigest()

    def _merger(self) -> Merger:
        if "merger" not in self.local.__dict__:
            self.local.merger = Merger()
        return self.local.merger

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
