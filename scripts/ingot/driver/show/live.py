"""The screen of a run on a terminal: what has ended scrolls, and below it stands the board."""

import contextlib
import os
import threading
import time

from ingot.base.steps import Step
from ingot.driver.show.capture import put
from ingot.driver.show.status import Status

OFTEN = 0.2  # seconds between two drawings, while a step writes line after line
PASSED = "runs     "  # a cluster's line of progress, which the board has


class Live:
    """Draws `status`, once each tick; `say` puts lines above it."""

    live = True

    def __init__(self, status: Status, terminal: int):
        from rich.console import Console

        self.status, self.terminal, self.lock = status, terminal, threading.RLock()
        self.known: dict[str, Step] = {}
        self.drawn, self.last, self.over, self.at = 0, "", False, 0.0
        file = os.fdopen(os.dup(terminal), "w")
        self.console = Console(file=file, force_terminal=True, highlight=False)

    def passed(self, line: str) -> None:
        """A step's own line."""
        if not line.startswith(PASSED):
            self._put(f"{line}\n", soon=True)

    def say(self, text: str) -> None:
        self._put(f"{text}\n")

    def failed(self, lines: list[str], log: str) -> None:
        self.say("\n".join(lines))

    def tick(self, known: dict[str, Step]) -> None:
        """The steps' records, as they are now."""
        self.known = known
        self._put("")

    def _put(self, text: str, soon: bool = False) -> None:
        """Write text over the board, and the board below it: in one write, so that nothing flickers."""
        with self.lock:
            fresh = soon and self.last and time.monotonic() - self.at < OFTEN
            board = self.last if fresh else self._board()
            if not text and board == self.last:
                return
            up = f"\033[{self.drawn}A" if self.drawn else ""
            put(self.terminal, f"{up}\r\033[J{text}{board}")
            self.drawn, self.last, self.at = board.count("\n"), board, time.monotonic()

    def _board(self) -> str:
        if self.over:
            return ""
        from ingot.driver.show.drawing import board

        with contextlib.suppress(OSError):
            width, height = os.get_terminal_size(self.terminal)
            self.console.size = (max(width, 20) - 1, max(height, 6))
        width, height = self.console.size
        with self.console.capture() as found:
            self.console.print(board(self.status, self.known, width, height))
        return found.get()

    def close(self) -> None:
        """Take the board away."""
        with self.lock:
            put(self.terminal, f"\033[{self.drawn}A\r\033[J" if self.drawn else "")
            self.drawn, self.last, self.over = 0, "", True
