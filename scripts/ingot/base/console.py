"""A toolchain's chatter goes to the log (stdout); the terminal (stderr) is for what matters."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ingot.base import record

BEAT = 30  # seconds between two signs of life


@contextmanager
def stderr_to_log(what: str) -> Iterator[None]:
    """Send file descriptor 2 to 1 meanwhile: libraries write there from C as well as from Python.

    Long work shows that it lives: `what` and how far it is, every half minute, on the terminal.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(1, 2)
    try:
        with heartbeat(what, kept):
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def heartbeat(what: str, terminal: int = 2) -> Iterator[None]:
    """Write `what`, and how far it is or how long it runs, to file descriptor `terminal`, now and then."""
    done, start, before = threading.Event(), time.monotonic(), record.counter()

    def beat() -> None:
        while not done.wait(BEAT):
            if record.shown() == "board":
                continue
            now, counter = time.monotonic(), record.counter()
            counts = counter is not before and counter.done and counter.done < counter.total
            state = counter.state(now) if counts else f"{now - start:.0f} s so far"
            os.write(terminal, f"{what}: {state}\n".encode())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
