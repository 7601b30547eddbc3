"""One run as a person sees it: what is said when it begins, of each job, of a failure, and when it ends."""

import atexit
import contextlib
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from ingot.base import steps
from ingot.base.entry import end_at_once
from ingot.base.refused import printable
from ingot.driver.catalogue.job import Job
from ingot.driver.forecast.schedule import duration, size
from ingot.driver.show import failure
from ingot.driver.show.capture import Capture
from ingot.driver.show.live import Live
from ingot.driver.show.log import Log
from ingot.driver.show.quality import few
from ingot.driver.show.status import Status
from ingot.driver.toolchains import toolchains

EACH = 1.0  # seconds between two looks at what runs
NUMBERS = 3  # of a verification


class Shown:
    """A run on a terminal as a board, elsewhere as lines; `quiet`: only what fails."""

    def __init__(self, status: Status, quiet: bool, silent: bool):
        self.status, self.quiet, self.silent = status, quiet, silent
        self.begun: set[str] = set()  # kinds of which there are many
        self.stopped, self.by, self.over = False, "", threading.Event()
        self.failures = 0  # before it was told to end
        self.capture = Capture()
        live = os.isatty(self.capture.terminal) and os.environ.get("TERM", "dumb") != "dumb"
        self.screen: Any = (Live if live and not quiet else Log)(status, self.capture.terminal)
        os.environ["INGOT_SHOWN"] = "board" if quiet or self.screen.live else "lines"
        if not (quiet or self.screen.live):
            self.screen.say(summary(status))
        self.capture.start(self.screen.passed)
        threading.Thread(target=self._beat, daemon=True, name="board").start()
        atexit.register(self.end, False)  # whatever ends it

    def _beat(self) -> None:
        while not self.over.is_set():
            found = steps.read(list(self.status.running))
            with contextlib.suppress(OSError):
                self.status.sample(sum(one.memory for one in found.values()))
                self.screen.tick(found)
            self.over.wait(EACH)

    def started(self, outputs: list[str], rule: str, kind: str) -> None:
        """A job is begun.  On a board it has a row."""
        if self.screen.live or not outputs:
            return
        if not self.status.many(kind):
            self.screen.say(f"start    {some(outputs)}  ({rule})")
        elif kind not in self.begun:
            self.begun.add(kind)
            self.screen.say(f"start    {self._files(kind, outputs)}  ({rule})")

    def finished(self, job: Job) -> None:
        """A job is done, what it wrote is in the store, and the status knows it."""
        status = self.status
        if self.silent or not status.jobs or not job.writes:
            return
        last, count = status.jobs[-1], f"{status.done} of {status.done + status.left}"
        if status.many(last["kind"]):
            whole, done = status.alike[last["kind"]]
            tenth = 10 * done // whole > 10 * (done - 1) // whole
            if done == whole or (tenth and not self.screen.live):
                self.screen.say(
                    f"done     {done} of {self._files(last['kind'], job.writes)}  ({count})"
                )
            return
        what = verdict(job.writes[0]) or (size(last["bytes"]) if last["bytes"] else "")
        said = [f"{last['seconds']:.1f} s", *([what] if what else []), count]
        self.screen.say(f"done     {some(job.writes)}  ({', '.join(said)})")

    def _files(self, kind: str, outputs: list[str]) -> str:
        return f"{self.status.alike[kind][0]} files of {outputs[0].rpartition('/')[0]}"

    def told(self, by: str) -> None:
        """It is to end: what fails from now on does so for that."""
        if not self.stopped:
            self.stopped, self.by, self.failures = True, by, len(self.status.failed)
            self.status.stopped_by = by
            self.status.write()

    def stop(self) -> str:
        """Ctrl-C: the steps have it, too."""
        self.told("Ctrl-C")
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # of Snakemake's
        with contextlib.suppress(ValueError):  # not the main thread, which alone hears a second one
            signal.signal(signal.SIGINT, self._at_once)
        return f"stopped  by {self.by}: ending {some(list(self.status.running))}"

    def _at_once(self, *_) -> None:
        """A second Ctrl-C, which the steps have, too: Snakemake would end in tracebacks."""
        self.end(False)
        end_at_once(130)

    def failed(self, failed: failure.Failed, more: list[str]) -> None:
        """Why a job failed.  Not of one that was told to end."""
        if self.stopped:
            return
        found = steps.read(failed.outputs)
        step = next(iter(found.values()), None)
        self.screen.failed(failed.lines(some(failed.outputs), step), failed.log)
        for line in more:  # of a log: it may hold what came from outside
            self.screen.passed(printable(line))

    def end(self, done: bool) -> None:
        """All that ran has ended: take the board away, and say how it went."""
        if self.over.is_set():
            return
        self.over.set()
        try:
            self.screen.close()
        finally:
            self.capture.close()
        status = self.status
        status.close()
        steps.close(status.run)
        if not done:
            whole = status.done + status.left
            failures = self.failures if self.stopped else len(status.failed)
            why = f"{failures} failed, " if failures else ""
            self.screen.say(
                f"kept     {why}{status.done} of {jobs(whole)} done; the same command resumes here"
            )
        elif not self.quiet:
            took = duration(time.time() - status.since)
            self.screen.say(f"built    {some(status.targets)}  ({jobs(status.done)} in {took})")


def summary(status: Status) -> str:
    """What a run is going to do, in a line."""
    plan, restored = status.plan, f"; {status.restored} files restored" if status.restored else ""
    if not plan["seconds"]:
        return f"plan     {jobs(status.left)}{restored}"
    least = "" if plan["whole"] else "at least "
    short = f" ({size(plan['free'])} free: too little)" if plan["free"] < plan["disk"] else ""
    needs = f"{size(plan['memory'])} of memory, {size(plan['disk'])} of disk{short}"
    needs += f", {size(plan['download'])} to download" if plan.get("download") else ""
    return f"plan     {jobs(status.left)}: {least}{duration(plan['seconds'])}, {needs}{restored}"


def jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def some(outputs: list[str]) -> str:
    """The first of several names, and how many more: an archive has one per rank."""
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"{toolchains.shown(outputs[0])}{more}" if outputs else ""


def verdict(path: str) -> str:
    """What a verification record says in few words; empty where `path` is none."""
    if not path.endswith(".verified.json"):
        return ""
    try:
        found = json.loads(Path(path).read_text())
        said = f"{found['result']} against {found['reference']}"
        return "; ".join([said, *few(found["checks"], NUMBERS)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
