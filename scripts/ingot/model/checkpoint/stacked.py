"""Experts of a layer that lie in one tensor: each part as GGUF has it, turned, or of MXFP4.

Two specs read one tensor, so none is hashed on the way: the end of a shard's reading does that.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ingot.base import stream
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.layers import MXFP4_BLOCK
from ingot.model.specs import TensorSpec
from ingot.model.tensors import few_bits
from ingot.model.tensors.dtypes import FLOATS

MOST = 252  # of a scale: beyond, six of them are infinite, and 255 is NaN


def blocks(rows, spec: TensorSpec) -> Iterator:
    """(first row, rows, read) of all of them, as Rows.blocks gives them; `rows` is that."""
    count, out = spec.shape[0], spec.shape[1]
    if spec.packed:
        size = spec.shape[2] // MXFP4_BLOCK * (MXFP4_BLOCK // 2) * spec.stack.step
        step = max(1, stream.CAST_BLOCK // size)
        for first in range(0, count * out, step):
            some = min(step, count * out - first)
            yield first, some, functools.partial(_codes, rows, spec, rows.ticket(), first, some)
    elif len(spec.shape) == 2:  # biases
        yield 0, count, functools.partial(_biases, rows, spec, rows.ticket())
    else:
        step = max(1, stream.CAST_BLOCK // (2 * spec.shape[2]))
        for first in range(0, count * out, step):
            for row, some in _within(first, min(first + step, count * out), out):
                read = functools.partial(_turned, rows, spec, rows.ticket(), row, some)
                yield row, some, read


def _within(first: int, last: int, out: int) -> Iterator[tuple[int, int]]:
    """Rows first..last as first ones and counts, cut where an expert ends."""
    while first < last:
        some = min(last, (first // out + 1) * out) - first
        yield first, some
        first += some


class Latest:
    """The expert that was read last, whose outputs several threads turn; never two at once."""

    def __init__(self):
        self.key: tuple = ()
        self.found, self.users = np.empty(0, np.uint8), 0
        self.free = threading.Condition()

    @contextlib.contextmanager
    def of(self, key: tuple, read: Callable[[], np.ndarray]) -> Iterator[np.ndarray]:
        with self.free:
            self.free.wait_for(lambda: self.key == key or not self.users)
            if self.key != key:
                self.key, self.found = (), np.empty(0, np.uint8)  # gone before the next is read
                self.found, self.key = read(), key
            self.users += 1
        try:
            yield self.found
        finally:
            with self.free:
                self.users -= 1
                self.free.notify_all()


def bytes_of(rows, tensor: Tensor, first: int, some: int, width: int) -> np.ndarray:
    """Rows first..first + some of `width` bytes."""
    buffer = memoryview(bytearray(some * width))
    stream.read_exactly(rows.files[tensor.path], buffer, tensor.offset + first * width, tensor.path)
    return np.frombuffer(buffer, np.uint8).reshape(some, width)


def _biases(rows, spec: TensorSpec, ticket: int) -> memoryview:
    (name,), stack = spec.sources, spec.stack
    tensor = rows.tensors[name]
    raw = bytes_of(rows, tensor, 0, tensor.shape[0], tensor.nbytes // tensor.shape[0])
    rows.passed(ticket)
    bits = raw.view(FLOATS[tensor.dtype].bits)
    mine = bits[:, stack.first :: stack.step]
    rows.progress.add(raw.nbytes // stack.step)
    return rows.cast(tensor, np.ascontiguousarray(mine), tensor.dtype, spec)


def _turned(rows, spec: TensorSpec, ticket: int, first: int, some: int) -> memoryview:
    """Outputs first..first + some of one expert: its [in, out] turned to [out, in]."""
    (name,), stack = spec.sources, spec.stack
    tensor = rows.tensors[name]
    width = tensor.nbytes // tensor.shape[0]
    expert, at = divmod(first, spec.shape[1])
    rows.passed(ticket)  # first: one that waits for its turn must not keep an expert from another
    columns = slice(at * stack.step + stack.first, (at + some) * stack.step, stack.step)
    with rows.experts.of((name, expert), lambda: bytes_of(rows, tensor, expert, 1, width)) as raw:
        bits = raw.view(FLOATS[tensor.dtype].bits).reshape(tensor.shape[1], -1)
        lying = np.ascontiguousarray(bits[:, columns])
        del bits, raw
    # in two steps: turned where it lies, each value would come from another line of the cache
    mine = np.ascontiguousarray(lying.T)
    rows.progress.add(mine.nbytes)
    return rows.cast(tensor, mine, tensor.dtype, spec)


def _codes(rows, spec: TensorSpec, ticket: int, first: int, some: int) -> memoryview:
    """Outputs first..first + some of all experts, one behind the other."""
    codes, scales = (rows.tensors[name] for name in spec.sources)
    each, step = spec.shape[2] // MXFP4_BLOCK, spec.stack.step
    raw = bytes_of(rows, codes, first * step, some * step, each * (MXFP4_BLOCK // 2))
    powers = bytes_of(rows, scales, first * step, some * step, each)
    rows.passed(ticket)
    mine = powers[spec.stack.first :: step]
    if mine.max(initial=0) > MOST:
        raise Refused(
            f"{scales.path}: tensor {scales.name} holds NaN or infinity; the checkpoint is damaged"
        )
    rows.progress.add((raw.nbytes + powers.nbytes) // step)
    return memoryview(few_bits.mxfp4_blocks(raw[spec.stack.first :: step], mine)).cast("B")
