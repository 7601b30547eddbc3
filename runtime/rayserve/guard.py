"""Watches Ray while the program waits for it inside Ray's own code, where Python hears no signal.

Ray's raylet ends itself where its agents take more than 15 s to start, as they do on a busy machine
(ray-project/ray#65983), and what waits for it never ends.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from leftovers import Leftovers

PATIENCE = 40  # seconds from a signal until the program is ended without its help
LOOK = 1.0  # seconds
SLOW = "its agents took longer than the 15 s that it gives them, as on a busy machine"


class Guard:
    """`dead(why)` and `unheard()` are called at most once, by a thread; neither may return."""

    def __init__(self, left: Leftovers, scratch: Path, dead: Callable, unheard: Callable):
        self.left, self.scratch = left, scratch
        self.dead, self.unheard = dead, unheard
        self.raylet = 0  # its process, once it has been seen
        self.ending = False  # by the program itself: then Ray's death is no news
        self.signalled = 0.0
        self.pipe, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        os.set_blocking(self.pipe, False)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK)
            self._hear()
            if self.signalled and time.monotonic() - self.signalled > PATIENCE:
                self.unheard()
            if self.ending:
                continue
            if not self.raylet:
                self.raylet = next(filter(is_raylet, self.left.processes()), 0)
            elif not is_raylet(self.raylet) and not self.ending:
                time.sleep(LOOK)  # the program may be ending it just now
                if not self.ending and not self.signalled:
                    self.dead(self.last_words())

    def heard(self) -> bool:
        """Has SIGTERM or Ctrl-C come?"""
        self._hear()
        return bool(self.signalled)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self.pipe, 64)
            if {signal.SIGTERM, signal.SIGINT} & set(heard):
                self.signalled = self.signalled or time.monotonic()

    def settle(self) -> None:
        """Where Ray has raised an error because its raylet died, that is what is said."""
        if self.raylet and not is_raylet(self.raylet):
            time.sleep(5 * LOOK)

    def last_words(self) -> str:
        """Why the raylet has ended, by what it said of it."""
        text = "".join(
            path.read_text(errors="replace")
            for path in self.scratch.glob("session_2*/logs/raylet.err")
        )
        if "WaitForDashboardAgentPorts" in text:
            return SLOW
        return next((line[:500] for line in text.splitlines() if " C " in line), "without a word")


def is_raylet(pid: int) -> bool:
    """Does the process run, and is it Ray's raylet?"""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return "(raylet)" in stat and stat.rpartition(")")[2].split()[0] != "Z"
    return False
