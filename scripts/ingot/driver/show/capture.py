"""What steps write to file descriptor 2, line by line, so that it stands where the screen puts it."""

import contextlib
import os
import re
import select
import threading
from collections.abc import Callable, Iterable, Iterator

from ingot.base.refused import printable

# bash names a program that a signal ended, with all its words; why a step failed is said in ours
OF_BASH = re.compile(
    r"(/\S+/)?bash: line \d+: +\d+ (Killed|Terminated|Segmentation|Aborted|Bus error) "
)

TRACEBACK = "Traceback (most recent call last):"
FRAME = ('  File "', "    ", "  [Previous line")  # how a traceback goes on


def put(terminal: int, text: str) -> None:
    """Write all of it.  A terminal that is gone, or a full disk, is no reason to end a run."""
    data = text.encode(errors="replace")
    while data:
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            select.select([], [terminal], [], 1.0)
        except OSError:
            return


def without_ctrl_c(lines: Iterable[str]) -> Iterator[str]:
    """All but the tracebacks of what Ctrl-C met while it imported, before it could say it in a line."""
    held: list[str] = []
    going, kept = 0, False  # tracebacks that have begun: those of steps side by side are mixed
    for line in lines:
        going += line.startswith(TRACEBACK)
        if not going:
            yield line
            continue
        held.append(line)
        if not line.startswith((TRACEBACK, *FRAME)):
            going, kept = going - 1, kept or not line.startswith("KeyboardInterrupt")
        if not going:
            yield from held if kept else ()
            held, kept = [], False
    yield from held


class Capture:
    """File descriptor 2 is a pipe from `start` to `close`; `terminal` is what it was."""

    def __init__(self) -> None:
        try:
            self.terminal = os.dup(2)
        except OSError:  # stderr is closed
            self.terminal = os.open(os.devnull, os.O_WRONLY)
        self.writing = -1

    def start(self, say: Callable[[str], None]) -> None:
        reading, self.writing = os.pipe()
        os.dup2(self.writing, 2)
        self.reader = threading.Thread(target=self._read, args=(reading, say), daemon=True)
        self.reader.start()

    def _read(self, reading: int, say: Callable[[str], None]) -> None:
        with os.fdopen(reading, errors="replace") as file:
            for line in without_ctrl_c(file):
                with contextlib.suppress(Exception):  # a reader that ends would end the steps
                    if not OF_BASH.match(line):
                        say(printable(line.rstrip("\r\n").rpartition("\r")[2].expandtabs(4)))

    def close(self) -> None:
        os.dup2(self.terminal, 2)
        os.close(self.writing)
        self.reader.join(1.0)  # a step that outlives the run holds the pipe
