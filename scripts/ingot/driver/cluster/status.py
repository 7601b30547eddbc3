"""What a run is doing, for another terminal: .ingot/status.json, as of the last job to start or end."""

import contextlib
import fcntl
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ingot.driver.job import Job

PLACE = Path(".ingot/status.json")
BUSY = Path(".snakemake/ingot.busy")  # locked by a run that is alive


@dataclass
class Status:
    """Of one run: times are seconds since 1970; `expected` seconds, None where nobody knows."""

    run: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=platform.node)
    since: float = field(default_factory=time.time)
    expected: float | None = None
    done: int = 0
    left: int = 0
    running: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the first output
    failed: dict[str, str] = field(default_factory=dict)  # and its log

    def started(self, job: Job, log: str, seconds: float | None) -> None:
        self.failed.pop(job.writes[0], None)
        found = {"rule": job.rule, "since": time.time(), "expected": seconds, "log": log}
        self.running[job.writes[0]] = found
        self.write()

    def finished(self, job: Job, left: int) -> None:
        self.running.pop(job.writes[0] if job.writes else "", None)
        self.done, self.left = self.done + 1, left
        self.write()

    def stopped(self, job: Job, log: str) -> None:
        if job.writes:
            self.running.pop(job.writes[0], None)
            self.failed[job.writes[0]] = log
            self.write()

    def write(self) -> None:
        with contextlib.suppress(OSError):  # nobody need read it
            PLACE.parent.mkdir(exist_ok=True)
            partial = PLACE.with_name(f"status.{self.pid}.partial")
            partial.write_text(json.dumps(asdict(self)))
            partial.replace(PLACE)


def read() -> Status | None:
    """Of the last run of this working folder; None where there was none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Status(**json.loads(PLACE.read_text()))
    return None


def alive() -> bool:
    """Does a run of this working folder go on, on whichever machine?"""
    with contextlib.suppress(OSError), BUSY.open("r+") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
