"""Comparisons with a checkpoint's tensors: one after another, or in a stream as they come."""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ingot.base import pieces
from ingot.model.checkpoint.arrivals import Arrivals
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.made import Made

Check = tuple[Callable[[], None], list[Tensor]]  # what it does, and what it reads of the checkpoint


def in_turn(checks: list[Check], counts: dict[str, int | float], files: list[Path]) -> None:
    """Do all checks of `files`, which add to `counts`, zeros before.

    In a stream a process goes on where one was killed, with its counts, unless a file is another one now.
    """
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
    for _ in arrivals.passes((), counts, files):
        for check in turns[arrivals.now]:
            check()


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The stored tensors that its values are made of."""
    return [tensor, *(tensor.beside if isinstance(tensor, Made) else ())]
