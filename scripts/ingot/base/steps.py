"""What steps record of themselves (record.py), by the output that each makes: the youngest of each."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

NOTES = Path(".ingot/notes/steps")
OLD = 2 * 86400  # seconds, after which what a killed run left is nobody's


@dataclass
class Step:
    """One record.  `total` is 0 where a step does not count; `unit` is empty for bytes."""

    words: list[str]
    memory: int = 0  # bytes, now
    peak: int = 0
    refused: str = ""  # why it failed
    what: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0  # per second


def read(outputs: Iterable[str], folder: Path = Path()) -> dict[str, Step]:
    """The records of those that make one of the outputs: whichever run has begun them."""
    wanted, found = set(outputs), {}
    for place in _places(folder):
        with contextlib.suppress(OSError, ValueError, TypeError):
            step = Step(**json.loads(place.read_text()))
            for word in wanted.intersection(step.words):
                found[word] = step
    return found


def forget(outputs: Iterable[str]) -> None:
    """Remove what an earlier try at the outputs left."""
    wanted = set(outputs)
    for place in _places(Path()):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if wanted.intersection(json.loads(place.read_text())["words"]):
                place.unlink()


def close(run: str) -> None:
    """A run has ended: remove its records, and what killed ones left long ago."""
    shutil.rmtree(NOTES / run, ignore_errors=True)
    for other in NOTES.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > OLD:
                shutil.rmtree(other, ignore_errors=True)


def _places(folder: Path) -> Iterator[Path]:
    """The oldest first."""
    found = []
    for place in (folder / NOTES).glob("*/*.json"):
        with contextlib.suppress(OSError):
            found.append((place.stat().st_mtime, place))
    return (place for _, place in sorted(found))
