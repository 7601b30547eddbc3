"""Waiting for somebody else's lock: with a word of who has it, and not for ever."""

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ingot.base.durable import regular_bytes
from ingot.base.refused import Refused
from ingot.base.shared import share

PATIENCE = 5.0  # seconds, then it is said who is waited for
LONGEST = 3600.0  # seconds; gc of a large store takes minutes
PAUSE = 0.05  # seconds


@contextlib.contextmanager
def locked(place: Path, shared: bool = False) -> Iterator[IO[bytes]]:
    """Hold the lock file `place`, alone or with others.  Refused after an hour of waiting.

    Processes that are given the file hold it, too, as long as they go on.
    """
    with opened(place) as lock:
        _wait(lock, place, shared)
        if not shared:
            _sign(lock)
        yield lock


def opened(place: Path) -> IO[bytes]:
    """The lock file, created with the mode of its folder; one that cannot be written can be held."""
    new = not place.exists()
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except PermissionError:
        file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if new:
        share(place, place.parent)
    return os.fdopen(file, "r+b" if os.access(place, os.W_OK) else "rb", buffering=0)


def _wait(lock: IO[bytes], place: Path, shared: bool) -> None:
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    start, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(lock, kind)
            return
        except BlockingIOError:
            waited = time.monotonic() - start
            if waited > LONGEST:
                raise Refused(
                    f"{place}: held for an hour by {holder(place)}, expected an end; stop that process"
                ) from None
            if waited > PATIENCE and not said:
                said = True
                text = f"{place}: held by {holder(place)}; waiting for its end"
                print(text, file=sys.stderr, flush=True)
            time.sleep(PAUSE)


def _sign(lock: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # read-only
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


def holder(place: Path) -> str:
    """Who held the lock alone last; several may hold it together."""
    try:
        return regular_bytes(place).decode(errors="replace")[:200] or "a build"
    except OSError:
        return "somebody"
