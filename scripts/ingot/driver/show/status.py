"""What a run is doing: .ingot/status.json; and when it has ended, how it went: .ingot/runs/.

Times are seconds since 1970, sizes bytes; None where nobody knows.
"""

import contextlib
import fcntl
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ingot.driver.catalogue.job import Job
from ingot.driver.forecast.costs import Forecast

PLACE = Path(".ingot/status.json")
RUNS = Path(".ingot/runs")
KEPT = 20  # runs
SAMPLES = 600  # at most; then every other one is left out
BUSY = Path(".snakemake/ingot.busy")  # locked by a run that is alive
MANY = 4  # fetches of one model, from which on they are one row


@dataclass
class Status:
    """Of one run.  Jobs go by their first output."""

    run: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=platform.node)
    since: float = field(default_factory=time.time)
    ends: float | None = None  # as far as is known now
    stopped_by: str = ""  # Ctrl-C or a signal, where it was told to end
    targets: list[str] = field(default_factory=list)
    done: int = 0
    left: int = 0  # running ones too
    restored: int = 0
    written: int = 0  # bytes of the jobs that are done
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # and its log
    alike: dict[str, list[int]] = field(default_factory=dict)  # by kind(): how many, and done
    plan: dict[str, Any] = field(default_factory=dict)  # what the forecast said of the whole run
    jobs: list[dict[str, Any]] = field(default_factory=list)  # those that ended well
    samples: list[list[float]] = field(default_factory=list)  # [when, memory]

    def started(self, job: Job, log: str, expected: Forecast | None) -> None:
        self.failed.pop(job.writes[0], None)
        known = {"seconds": None, "memory": None, "bytes": None}
        if expected:
            known = {
                "seconds": expected.seconds, "memory": expected.memory, "bytes": expected.written
            }  # fmt: skip
        found = {
            "rule": job.rule,
            "kind": kind(job),
            "since": time.time(),
            "expected": known["seconds"],
        }
        self.running[job.writes[0]] = {**found, "plan": known, "log": log}
        self.write()

    def finished(self, job: Job, left: int, size: int = 0) -> None:
        output = job.writes[0] if job.writes else ""
        if begun := self.running.pop(output, None):
            seconds = time.time() - begun["since"]
            self.jobs.append({"output": output, **begun, "seconds": seconds, "bytes": size})
            self.alike.get(begun["kind"], [0, 0])[1] += 1
        self.done, self.left, self.written = self.done + 1, left, self.written + size
        self.write()

    def stopped(self, job: Job, log: str) -> None:
        if job.writes:
            self.running.pop(job.writes[0], None)
            self.failed[job.writes[0]] = log
            self.write()

    def expect(self, jobs: list[Job], plan: dict[str, Any]) -> None:
        """What is to be done: the jobs, and what the forecast says of them as a whole."""
        for job in jobs:
            self.alike.setdefault(kind(job), [0, 0])[0] += 1
        self.left, self.plan = len(jobs), plan

    def sample(self, memory: int) -> None:
        """Note what memory the steps take now."""
        self.samples.append([round(time.time(), 1), memory])
        if len(self.samples) > SAMPLES:
            del self.samples[1:-1:2]

    def many(self, kind: str) -> bool:
        return kind.startswith("fetch_file ") and self.alike.get(kind, [0])[0] >= MANY

    def write(self) -> None:
        long = {"jobs", "samples"}
        short = {key: value for key, value in vars(self).items() if key not in long}
        short["plan"] = {key: value for key, value in self.plan.items() if key != "disk_at"}
        _write(PLACE, short)

    def close(self) -> None:
        """The run has ended: keep how it went."""
        if self.done or self.failed:
            _write(RUNS / f"{self.since:.0f}-{self.run[:8]}.json", asdict(self))
            for old in sorted(RUNS.glob("*.json"))[:-KEPT]:
                old.unlink(missing_ok=True)


def kind(job: Job) -> str:
    """Jobs of one kind are one row where they are many: a model's fetches."""
    return f"{job.rule} {job.wildcards.get('model', '')}".strip()


def _write(place: Path, found: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody need read it
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f"{place.stem}.{os.getpid()}.partial")
        partial.write_text(json.dumps(found))
        partial.replace(place)


def read(folder: Path = Path()) -> Status | None:
    """Of the last run of a working folder; None where there was none."""
    return _read(folder / PLACE)


def runs() -> list[Status]:
    """The runs of this folder that have ended, the oldest first."""
    return [found for place in sorted(RUNS.glob("*.json")) if (found := _read(place))]


def _read(place: Path) -> Status | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Status(**json.loads(place.read_text()))
    return None


def alive(folder: Path = Path()) -> bool:
    """Does a run of a working folder go on, on whichever machine?"""
    for mode in ("r+", "r"):  # to another user it is not his to write
        with contextlib.suppress(OSError), (folder / BUSY).open(mode) as busy:
            try:
                fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    return False
