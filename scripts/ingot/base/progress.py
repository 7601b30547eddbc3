"""A progress line on the terminal; on a log, one line every ten percent.  A run's board has its own."""

import shutil
import sys
import threading
import time

from ingot.base import record
from ingot.base.refused import drawn_on, harmless

SHORT = 0.5  # seconds, in which nobody looks


class Progress:
    """Counts bytes, or another `unit`, toward `total` and shows them on stderr, at most five times a
    second."""

    def __init__(self, what: str, total: int, unit: str = ""):
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.start = time.monotonic()
        self.first = 0  # bytes that were there before we began: they say nothing about speed
        self.shown = 0.0
        self.tenth = 0
        self.tty = sys.stderr.isatty()
        self.lock = threading.Lock()
        record.counts(self)
        self.silent = record.shown() == "board"

    def resume(self, count: int) -> None:
        """Start from `count` bytes that an earlier process left."""
        self.done = self.first = count

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            if self.silent:
                return
            now = time.monotonic()
            tenth = 10 * self.done // max(self.total, 1)
            if self.tty and (now - self.shown > 0.2 or self.done >= self.total):
                if now - self.start < SHORT:
                    return
                self.shown = now
                end = "\n" if self.done >= self.total else ""
                line = self._line(now)[: shutil.get_terminal_size().columns - 1]
                text = f"\r{harmless(line)}\033[K{end}"
                print(text, end="", file=drawn_on(sys.stderr), flush=True)
            elif not self.tty and tenth > self.tenth and now - self.start > 5:
                self.tenth = tenth  # short work stays silent in a log
                print(self._line(now), file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        return f"{self.what}: {self.state(now)}"

    def state(self, now: float) -> str:
        """How far it is, and how long it may still take."""
        speed = (self.done - self.first) / max(now - self.start, 1e-6)
        left = (self.total - self.done) / speed if speed else 0
        share = 100 * self.done // max(self.total, 1)
        count = f"{self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB  {speed / 1e6:.0f} MB/s"
        if self.unit:
            count = f"{self.done} of {self.total} {self.unit}"
        return f"{share:3d} %  {count}  {left:.0f} s left"
