"""Requests computed together: each joins the running batch when it comes, and leaves when it is done.

A new one is read alone, in pieces between the others' tokens; then its cache is put beside theirs,
filled up on the left.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NEVER = 30  # below e to the power of minus this nothing is ever chosen
PIECE = 256  # tokens of a prompt that others wait for; the logits of each are computed, too


@dataclass(frozen=True)
class Asked:
    """One continuation: `count` tokens at most, after `prompt`.  temperature 0: always the best token."""

    prompt: list[int]
    count: int
    ends: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass
class Row:
    """A request on its way.  `tell` gets each (token, log-probability), and at last why it ended."""

    asked: Asked
    tell: Callable[[tuple[int, float] | str | Exception], None]
    said: int = 0
    token: int = 0
    cancelled: bool = False
    chance: np.random.Generator = field(init=False)

    def __post_init__(self):
        self.chance = np.random.default_rng(self.asked.seed)

    def take(self, logits: np.ndarray) -> bool:
        """Choose the next token, tell it; true when it was the last."""
        self.token = chosen(logits, self.asked, self.chance)
        shifted = logits.astype(np.float64) - logits.max()
        self.said += 1
        self.tell((self.token, float(shifted[self.token] - np.log(np.exp(shifted).sum()))))
        if self.token in self.asked.ends:
            self.tell("stop")
        elif self.said == self.asked.count:
            self.tell("length")
        else:
            return False
        return True


@dataclass
class Coming:
    """A newcomer: what of its prompt is still to be read, into a cache of its own."""

    row: Row
    left: list[int]
    session: Any = None


class Batch:
    """At most `size` rows, by one thread."""

    def __init__(self, decoder, size: int):
        self.decoder, self.size = decoder, size
        self.waiting: queue.Queue[Row] = queue.Queue()
        self.rows: list[Row] = []
        self.mask = np.zeros((0, 0), np.int64)
        self.session = decoder.session()
        self.coming: deque[Coming] = deque()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, asked: Asked, tell: Callable) -> Row:
        if self.error:
            raise RuntimeError(str(self.error))
        row = Row(asked, tell)
        self.waiting.put(row)
        if self.error:  # meanwhile
            raise RuntimeError(str(self.error))
        return row

    def _run(self) -> None:
        try:
            while True:
                self._admit()
                if self.coming:
                    self._read()
                if self.rows:
                    self._step()
        except Exception as error:  # whoever waits must hear of it; the replica is then unhealthy
            self.error = error
            left = [*self.rows, *(one.row for one in self.coming)]
            while not self.waiting.empty():
                left.append(self.waiting.get())
            for row in left:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    row.tell(error)

    def _admit(self) -> None:
        """Let new ones in while there is room; without any, wait."""
        while len(self.rows) + len(self.coming) < self.size:
            idle = not self.rows and not self.coming
            try:
                row = self.waiting.get(block=idle)
            except queue.Empty:
                return
            self.coming.append(Coming(row, list(row.asked.prompt)))

    def _read(self) -> None:
        """One piece of the first newcomer's prompt; after the last piece it joins."""
        first = self.coming[0]
        row = first.row
        if row.cancelled:
            self.coming.popleft()
            return
        first.session = first.session or self.decoder.session()
        piece, first.left = first.left[:PIECE], first.left[PIECE:]
        done = len(row.asked.prompt) - len(first.left)
        logits = first.session.step(np.array([piece], np.int64), np.ones((1, done), np.int64))
        if not first.left:
            self.coming.popleft()
            if not row.take(logits[0]):
                self._join(row, first.session.cache)

    def _join(self, row: Row, cache: list[np.ndarray]) -> None:
        own = np.ones((1, len(row.asked.prompt)), np.int64)
        if self.rows:
            empty = int(self.mask.any(0).argmax())  # that those who left have left on the left
            theirs = [one[:, :, empty:] for one in self.session.cache]
            longest = max(self.mask.shape[1] - empty, own.shape[1])
            both = zip(theirs, cache, strict=True)
            cache = [np.concatenate([filled(a, longest), filled(b, longest)]) for a, b in both]
            masks = (filled(one, longest, 1) for one in (self.mask[:, empty:], own))
            own = np.concatenate(list(masks))
        self.session.cache, self.mask = cache, own
        self.rows.append(row)

    def _step(self) -> None:
        self.mask = np.pad(self.mask, ((0, 0), (0, 1)), constant_values=1)
        ids = np.array([[row.token] for row in self.rows], np.int64)
        logits = self.session.step(ids, self.mask)
        stay = [
            number
            for number, row in enumerate(self.rows)
            if not row.cancelled and not row.take(logits[number])
        ]
        if len(stay) < len(self.rows):
            self.rows = [self.rows[number] for number in stay]
            self.mask = self.mask[stay]
            if stay:
                self.session.keep(stay)
            else:
                self.session = self.decoder.session()


def filled(values: np.ndarray, longest: int, axis: int = 2) -> np.ndarray:
    """With zeros on the left of `axis`."""
    widths = [(0, 0)] * values.ndim
    widths[axis] = (longest - values.shape[axis], 0)
    return np.pad(values, widths)


def chosen(logits: np.ndarray, asked: Asked, chance: np.random.Generator) -> int:
    if asked.temperature == 0:
        return int(logits.argmax())
    top = logits.max()
    if 0 < asked.top_k < len(logits):
        kept = np.argpartition(-logits, asked.top_k - 1)[: asked.top_k]
    else:
        kept = np.flatnonzero(logits >= top - NEVER * asked.temperature)
    shares = np.exp((logits[kept].astype(np.float64) - top) / asked.temperature)
    if asked.top_p < 1:  # only then their order counts, which takes ten times as long
        order = np.argsort(-shares, kind="stable")
        kept, shares = kept[order], shares[order]
        most = int((shares.cumsum() < asked.top_p * shares.sum()).sum()) + 1
        kept, shares = kept[:most], shares[:most]
    return int(chance.choice(kept, p=shares / shares.sum()))
