"""Looks at a checkpoint's tensors: all, or in a stream each as it comes."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from ingot.base import pieces, stream
from ingot.model.checkpoint.arrivals import Arrivals
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.made import Made

Look = tuple[Callable[[], None], list[Tensor]]  # what it does, and what it reads of the checkpoint


def in_turn(looks: list[Look], outs: Collection[Any], threads: int) -> None:
    """Do all, so many at a time.

    In a stream a process goes on where one was killed: what that had found lies in `outs`, which are on the
    disk at the end of each shard, by their `sync`.
    """
    where = pieces.folder()
    if where is None:
        stream.in_threads([look for look, _ in looks], count=threads)
        return
    read = [[part for one in needs for part in parts_of(one)] for _, needs in looks]
    arrivals = Arrivals(
        where, os.environ[pieces.WRITER], {one.name: one for needs in read for one in needs}
    )
    turns: dict[int | None, list[Callable[[], None]]] = defaultdict(list)
    for number, ((look, _), needs) in enumerate(zip(looks, read, strict=True)):
        arrivals.note(number, [one.name for one in needs])
        turns[arrivals.turns[number]].append(look)
    for _ in arrivals.passes(outs):
        stream.in_threads(turns[arrivals.now], count=threads)


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The stored tensors that its values are made of."""
    return [tensor, *(tensor.beside if isinstance(tensor, Made) else ())]
