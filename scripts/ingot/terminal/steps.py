"""What the steps of a run record of themselves (terminal/record.py), by the output that each makes."""

import contextlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NOTES = Path(".ingot/notes/steps")


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


def read(run: str, outputs: Iterable[str], folder: Path = Path()) -> dict[str, Step]:
    """The records of those that make one of the outputs.  Steps begin with an output among their words."""
    wanted, found = set(outputs), {}
    for place in (folder / NOTES / run).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            step = Step(**json.loads(place.read_text()))
            for word in wanted.intersection(step.words):
                found[word] = step
    return found


def forget(run: str) -> None:
    shutil.rmtree(NOTES / run, ignore_errors=True)
