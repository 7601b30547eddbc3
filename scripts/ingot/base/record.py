"""What a step says of itself while it runs and where it fails, for whoever shows the run.

A small file below $INGOT_NOTES, rewritten each second: whichever machine the step runs on, the run that
started it can read there how far it is and what memory it takes.
"""

import contextlib
import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

EACH = 1.0  # seconds between two records
PAGE = os.sysconf("SC_PAGE_SIZE")

_counter: Any = None  # the Progress that counts now
_words = list(sys.argv)  # as it began: sharktank puts its own in their place
_peak = 0
_refused = ""
_shown: str | None = (
    None  # as the run said when this step began; what it starts itself prints its own
)
_over, _lock = threading.Event(), threading.Lock()


def shown() -> str:
    """How the run shows what steps record: on a `board`, in `lines`, or not at all.

    Where it does, a step does not print why it failed; where it has a board, no progress either.
    """
    said = os.environ.get("INGOT_SHOWN", "") if _shown is None else _shown
    return said if _place() else ""


def counts(progress: Any) -> None:
    """From now on, `progress` says how far the step is: its `what`, `done`, `total`, `unit`."""
    global _counter
    _counter = progress


def counter() -> Any:
    """The Progress that counts now, or None."""
    return _counter


def begin() -> None:
    """Record this process from now on, in a thread; where no run has started it, nothing."""
    global _shown
    _shown = os.environ.pop("INGOT_SHOWN", "")
    if place := _place():
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=_beat, args=(place,), daemon=True, name="record").start()


def refused(reason: str) -> None:
    """Leave why this step failed."""
    global _refused
    _refused = reason
    if place := _place():
        _record(place)


def end() -> None:
    """The step is done: there is nothing more to say."""
    with _lock:
        _over.set()
        if place := _place():
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)


def _place() -> Path | None:
    notes, run = os.environ.get("INGOT_NOTES"), os.environ.get("INGOT_RUN")
    name = f"{platform.node()}-{os.getpid()}.json"
    return Path(notes, "steps", run, name) if notes and run else None


def _beat(place: Path) -> None:
    while not _over.is_set():
        _record(place)
        _over.wait(EACH)


def _record(place: Path) -> None:
    """One at a time: a reason that was left is not written over by what was true before."""
    with _lock:
        if not _over.is_set():
            _write(place, _state())


def _state() -> dict[str, Any]:
    """The command's words, among which is an output; memory in bytes; what is counted, with its rate."""
    global _peak
    memory = _memory()
    _peak = max(_peak, memory)
    words = [*_words, os.environ.get("INGOT_OUTPUT", "")]
    found = {"words": words, "memory": memory, "peak": _peak, "refused": _refused}
    if (counter := _counter) is not None:
        rate = (counter.done - counter.first) / max(time.monotonic() - counter.start, 1e-6)
        of = {name: getattr(counter, name) for name in ("what", "done", "total", "unit")}
        found |= {**of, "rate": rate}
    return found


def _memory() -> int:
    """Bytes that this process and those below it hold now."""
    whole, todo = 0, [os.getpid()]
    while todo:
        process = Path("/proc", str(todo.pop()))
        with contextlib.suppress(OSError, ValueError, IndexError):
            whole += int((process / "statm").read_text().split()[1]) * PAGE
            for children in process.glob("task/*/children"):
                todo += map(int, children.read_text().split())
    return whole


def _write(place: Path, found: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody need read it
        partial = place.with_suffix(f".{threading.get_ident()}.partial")
        partial.write_text(json.dumps(found))
        partial.replace(place)
