"""Rows of each head of a weight as GGUF has them: a tensor of their own, turned or not.

Two specs read one tensor, so none is hashed on the way: the end of a shard's reading does that.
"""

import functools
from collections.abc import Iterator

import numpy as np

from ingot.model.checkpoint import stacked
from ingot.model.specs import TensorSpec
from ingot.model.tensors.dtypes import STORED


def blocks(rows, spec: TensorSpec) -> Iterator:
    """(first row, rows, read) head by head, as Rows.blocks gives them; `rows` is that."""
    heads, out, _ = spec.shape
    for head in range(heads):
        yield head * out, out, functools.partial(_head, rows, spec, rows.ticket(), head)


def _head(rows, spec: TensorSpec, ticket: int, head: int) -> memoryview:
    (name,), part = spec.sources, spec.part
    tensor, (_, *sides) = rows.tensors[name], spec.shape
    count = sides[1 if part.turned else 0]
    first, width = head * part.every + part.first, tensor.nbytes // tensor.shape[0]
    raw = stacked.bytes_of(rows, tensor, first, count, width)
    rows.passed(ticket)
    bits, dtype = rows.values(name, raw.view(STORED[tensor.dtype].bits), first)
    mine = np.ascontiguousarray(bits.T) if part.turned else bits
    rows.progress.add(raw.nbytes)
    return rows.cast(tensor, mine, dtype, spec)
