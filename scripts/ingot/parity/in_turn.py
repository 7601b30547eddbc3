"""Comparisons with a checkpoint's tensors: one after another, or in a stream as they come."""

import os
from collections import defaultdict
from collections.abc import Callable

from ingot.base import pieces
from ingot.model.checkpoint.arrivals import Arrivals
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.made import Made

Check = tuple[Callable[[], None], list[Tensor]]  # what it does, and what it reads of the checkpoint


def in_turn(checks: list[Check], counts: dict[str, int | float]) -> None:
    """Do all checks, which add to `counts`.  In a stream a process may go on where a killed one was: then
    `counts` begins with what that one had found."""
    where = pieces.folder()
    if where is None:
        for check, _ in checks:
            check()
        return
    read = [[part for one in needs for part in parts_of(one)] for _, needs in checks]
    arrivals = Arrivals(
        where, os.environ[pieces.WRITER], {one.name: one for needs in read for one in needs}
    )
    turns: dict[int | None, list[Callable[[], None]]] = defaultdict(list)
    for number, ((check, _), needs) in enumerate(zip(checks, read, strict=True)):
        arrivals.note(number, [one.name for one in needs])
        turns[arrivals.turns[number]].append(check)
    for _ in arrivals.passes((), counts):
        for check in turns[arrivals.now]:
            check()


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The stored tensors that its values are made of."""
    return [tensor, *(tensor.beside if isinstance(tensor, Made) else ())]
