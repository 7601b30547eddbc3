"""A terminal: a command on a real pseudo-terminal, and the screens that a person would see."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pyte

REDRAWN = re.compile(rb"(?=\x1b\[\d+A\r\x1b\[J)")  # a board is drawn over the last one


class Terminal:
    """`screens` are all that were seen; `text()` is what is there now."""

    def __init__(self, command, columns=100, lines=30, **options):
        self.screen = pyte.HistoryScreen(columns, lines, history=2000)
        self.stream = pyte.ByteStream(self.screen)
        self.screens: list[tuple[float, list[str]]] = []
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.master = ours
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=_own_terminal, **options,
        )  # fmt: skip
        os.close(theirs)

    def read(self, seconds=0.2) -> bool:
        """Take in what is written within `seconds`; False at the end."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # as a pseudo-terminal ends
            return False
        for piece in REDRAWN.split(data):  # several may have been written meanwhile
            self.stream.feed(piece)
            self.screens.append((time.monotonic(), self.lines()))
        return bool(data)

    def lines(self) -> list[str]:
        """What has scrolled away and what is on the screen."""
        columns = range(self.screen.columns)
        gone = ["".join(line[x].data for x in columns) for line in self.screen.history.top]
        return [line.rstrip() for line in (*gone, *self.screen.display)]

    def text(self) -> str:
        return "\n".join(self.lines()).rstrip()

    def until(self, what, seconds=60) -> None:
        """Wait until what(text) holds."""
        end = time.monotonic() + seconds
        while not what(self.text()):
            assert self.read() and time.monotonic() < end, self.text()

    def close(self, seconds=120) -> int:
        """Wait for the command's end: its exit status."""
        end = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < end, self.text()
            if self.process.poll() is not None and not select.select([self.master], [], [], 0.5)[0]:
                break
        return self.process.wait(10)

    def ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.master)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
