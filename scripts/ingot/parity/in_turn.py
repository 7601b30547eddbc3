"""Looks at a checkpoint's tensors: all, or in a stream each as it comes."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from ingot.base import pieces, stream
from ingot.base.durable import sync_name
from ingot.base.refused import Refused
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


class Found:
    """What is known by now, by the tensor's name; in a stream it lies beside the pieces, too, so that a
    process that goes on with a killed one's knows it."""

    def __init__(self):
        self.tensors: dict[str, Any] = {}
        self.path, self.file = None, None
        if where := pieces.folder():
            self.path = where / f"found-{os.environ[pieces.WRITER]}"
            if not self.path.exists():
                pieces.forget()
            self.file = self.path.open("a+b", buffering=0)
            self.file.seek(0)
            for line in self.file:
                with suppress(ValueError):  # cut short by a kill: its pass was not reported
                    self.tensors |= json.loads(line)

    def add(self, name: str, found: dict[str, Any]) -> None:
        self.tensors[name] = found
        if self.file:
            data = b"\n" + json.dumps({name: found}).encode() + b"\n"
            if self.file.write(data) != len(data):
                raise Refused(f"{self.path}: does not fit on the disk; free some space")

    def lose(self) -> None:
        """What was reported is worth nothing: all comes again."""
        pieces.forget()
        if self.path:
            self.path.unlink(missing_ok=True)
            (self.path.parent / "lost").touch()

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fdatasync(self.file.fileno())
        sync_name(self.path)
