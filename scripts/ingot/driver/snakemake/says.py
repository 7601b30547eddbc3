"""What Snakemake 9.27.1 says, in Ingot's terms; its private names: snakemake_{hook,says,asks}.py.

On the terminal a job is one line when it starts and one when it ends; Snakemake's own paragraphs, which
list each file of code, are in its log, and with `-p` or `--verbose` on the terminal as well.
"""

import logging
import os
import re
import signal
import threading
from typing import Any

from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.rules import environment
from ingot.driver.show.failure import Failed, signal_of
from ingot.driver.show.shown import Shown, some
from ingot.driver.show.status import Status
from ingot.driver.snakemake import words as snakemake_words

SIGNALS = {one.value for one in signal.Signals}
FAILURES = {"job_error", "group_error"}
PARAGRAPHS = {
    "workflow_started", "resources_info", "shellcmd", "run_info", "job_finished", "progress", "group_error",
}  # fmt: skip
FAILED = re.compile(
    r"CalledProcessError in file (?s:.*)(?:exit status (\d+)|died with <Signals\.(\w+))"
)
RUNNER = re.compile(
    r"srun: |WorkflowError:|At least one job did not complete|failed   |log      |again    |"
    r"Storing output in|Will exit after finishing"
)  # what Snakemake's own process on a node says of itself
FURTHER = "For further error details"  # what is said then of logs, we name
CTRL_C = re.compile("Terminating processes on user request")


def install_lines() -> None:
    """Put our lines in place of Snakemake's on the terminal; its log file stays as it is."""
    global _lines
    from snakemake.logging import logger

    for handler in list(logger.handlers):
        if handler.name != "DefaultStreamHandler":
            continue
        asked: Any = handler.filters[0]
        if not (asked.printshellcmds or asked.verbose):
            logger.removeHandler(handler)
            logger.addHandler(_lines := Lines(handler))


status = 0  # as shells have it, of a run that was told to end
_lines: "Lines | None" = None  # of this process; None where Snakemake's own are shown


def quiet() -> bool:
    """Did the user ask that nothing be said of what goes well?"""
    return bool(_lines and _about(_lines.asked, "ALL"))


def begin(status: Status) -> None:
    """Something will run: from now on `status` is shown."""
    os.environ.pop("INGOT_SHOWN", None)  # of a run that this one is a step of
    if _lines:
        _lines.shown = Shown(status, quiet(), quiet() or _about(_lines.asked, "PROGRESS"))


def stopped() -> None:
    """The running steps are told to end: that they do is no failure."""
    if _lines and _lines.shown:
        _lines.shown.told("SIGTERM")


def finished(job: Job) -> None:
    """A job is done, and the status knows it."""
    if _lines and _lines.shown:
        _lines.shown.finished(job)


def end(done: bool) -> None:
    """All that ran has ended."""
    global status
    if _lines and _lines.shown:
        shown, _lines.shown = _lines.shown, None
        shown.end(done)
        if shown.stopped:
            status = 128 + (signal.SIGTERM if shown.by == "SIGTERM" else signal.SIGINT)


class Lines(logging.StreamHandler):
    """A line per event.  What is not an event is passed on, less Snakemake's remarks on itself."""

    def __init__(self, before: Any):
        super().__init__(before.stream)
        self.name, self.theirs, self.asked = before.name, before.formatter, before.filters[0]
        self.shown: Shown | None = None  # while something runs
        self.ended: dict[int, tuple[int, str | None]] = {}  # by thread: a step's status, and signal

    def filter(self, record: logging.LogRecord) -> bool:
        """Quiet is of what goes well."""
        failed = _event(record) in FAILURES or record.levelno >= logging.ERROR
        told = failed or CTRL_C.match(record.getMessage())
        return bool(told) or self.asked.filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        event = _event(record)
        if event in PARAGRAPHS:
            return
        if text := getattr(self, f"_{event}", self._remark)(record):
            if self.shown:
                self.shown.screen.say(text)
            else:
                self.stream.write(f"{text}\n")
                self.flush()

    def _remark(self, record: logging.LogRecord) -> str:
        text = self.theirs.format(record)
        if found := FAILED.search(text):
            status = int(found[1] or 0)
            by = found[2] or (signal_of(status - 128) if status - 128 in SIGNALS else None)
            self.ended[threading.get_ident()] = (status, by)
            return ""
        if CTRL_C.match(text) and self.shown:
            return self.shown.stop()
        return snakemake_words.told(text)

    def _job_info(self, record: Any) -> None:
        if self.shown:
            kind = f"{record.rule_name} {record.wildcards.get('model', '')}".strip()
            self.shown.started(list(record.output), record.rule_name, kind)

    def _job_error(self, record: Any) -> str:
        status, by = self.ended.pop(threading.get_ident(), (0, None))
        failed = Failed(
            record.rule_name, list(record.output), next(iter(record.log), ""),
            f"{environment.PREFIX}{record.shellcmd}" if record.shellcmd else "",
            status, by, (record.rule_msg or "").partition(FURTHER)[0].strip(),
            bool(getattr(record, "indent", False)), RUNNER.match,
        )  # fmt: skip
        more = []
        if self.theirs.show_failed_logs:
            from snakemake.logging import show_logs

            more = list(show_logs(record.log))
        if self.shown:
            self.shown.failed(failed, more)
            return ""
        return "\n".join([*failed.lines(some(failed.outputs), None), *more])  # on a node


def _event(record: logging.LogRecord) -> str:
    return getattr(getattr(record, "event", None), "value", "")


def _about(asked: Any, what: str) -> bool:
    from snakemake.settings.enums import Quietness

    return Quietness[what] in asked.quiet
