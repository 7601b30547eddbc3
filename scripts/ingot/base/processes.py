"""The processes below this one: told to end, then ended."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

PATIENCE = 25.0  # seconds until what does not end is killed; a server of ours takes 20 at most
PAUSE = 1.0  # seconds until a signal is acted on, at most


def stop_below(ancestor: int) -> None:
    """SIGTERM to all that `ancestor` started, deepest first; SIGKILL to what goes on."""
    found = below(ancestor)
    _send(found, signal.SIGTERM)

    def kill() -> None:
        time.sleep(PATIENCE)
        _send([pid for pid in found if pid in below(ancestor)], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def below(ancestor: int) -> list[int]:
    """The descendants of a process, deepest first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, level = [], [ancestor]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return found[::-1]


def heed() -> None:
    """Have the main thread act on a signal within a second, also while it waits for a lock.

    The system may hand a signal to any thread; Python runs its handler in the main one, which nothing
    wakes then: a run on a cluster was told to end, and never heard it.
    """
    main = threading.main_thread().ident

    def nudge() -> None:
        while True:
            time.sleep(PAUSE)
            signal.pthread_kill(main, signal.SIGURG)

    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGURG, lambda *_: None)
        threading.Thread(target=nudge, name="heed", daemon=True).start()
