"""What Snakemake 9.27.1 says, in Ingot's terms; its private names are in snakemake_hook.py and here.

On the terminal a job is one line when it starts and one when it ends; Snakemake's own paragraphs, which
list each file of code, are in its log, and with `-p` or `--verbose` on the terminal as well.
`--report`, `--list-changes` and `--lint` are answered from the store's records and the locks: Snakemake
keeps no metadata of ours, and knows no toolchain but conda's.
"""

import contextlib
import logging
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decision
from ingot.driver.cache.differences import nearest
from ingot.driver.cluster.slurm import STATUS
from ingot.driver.job import VOLATILE, Job

TAIL = 3  # lines of the log of a step that could not say itself why it ended
NOISE = re.compile(
    r"Using workflow specific profile|Config file .* is extended|Assuming unrestricted|"
    r"Building DAG of jobs|Using shell|Provided (cores|resources)|Rules claiming more|Select jobs|"
    r"Execute \d+ jobs|Shutting down|Exiting because a job|Removing output files of failed|Reasons:|"
    r"Elapsed time|SLURM run ID|Cleaning up SLURM log files|"
    r"WorkflowError:\s+At least one job did|Missing metadata for file logs/toolchain/"
)
PARAGRAPHS = {"workflow_started", "resources_info", "shellcmd"}
FAILED = re.compile(
    r"CalledProcessError in file (?s:.*)(?:exit status (\d+)|died with <Signals\.(\w+))"
)
RUNNER = re.compile(
    r"srun: |WorkflowError:|At least one job did not complete|failed   .*: log: |Storing output in|"
    r"Will exit after finishing"
)  # what Snakemake's own process on a node says of itself
FURTHER = "For further error details"  # what is said then of logs, we name
HINTS = {"SIGKILL": ", as the kernel does where memory runs out"}
FIELDS = {
    "code": ("command", "outputs", "code", "lock"),
    "input": ("inputs",),
    "params": ("params", "wildcards"),
}  # of a key, by Snakemake's word for a change
OURS = {"PYTHON", "ROOT", "sys"}  # of rules/common.smk; what they decide is in the key by `lock`


def install_lines() -> None:
    """Put our lines in place of Snakemake's on the terminal; its log file stays as it is."""
    from snakemake.logging import logger

    for handler in list(logger.handlers):
        if handler.name != "DefaultStreamHandler":
            continue
        asked = handler.filters[0]
        if not (asked.printshellcmds or asked.verbose):
            logger.removeHandler(handler)
            logger.addHandler(Lines(handler))


class Lines(logging.StreamHandler):
    """A line per event.  What is not an event is passed on, less Snakemake's remarks on itself."""

    def __init__(self, before: Any):
        super().__init__(before.stream)
        self.name, self.filters, self.theirs = before.name, before.filters, before.formatter
        self.dry = self.table = before.filters[0].dryrun
        self.started: dict[int, tuple[float, str]] = {}  # by job id: when, and its outputs
        self.ended = ""  # what the last progress is of
        self.signal: str | None = None  # that ended the step that failed last

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        if event and event.value in PARAGRAPHS:
            return ""
        return getattr(self, f"_{event.value}" if event else "", self._remark)(record)

    def emit(self, record: logging.LogRecord) -> None:
        if text := self.format(record):
            self.stream.write(f"{text}\n")
            self.flush()

    def _remark(self, record: logging.LogRecord) -> str:
        text = self.theirs.format(record)
        if found := FAILED.search(text):
            status = int(found[1] or 0)
            self.signal = found[2] or (signal_of(status - 128) if status > 128 else None)
            return ""
        return "" if NOISE.match(text) else text.rstrip()

    def _run_info(self, record: Any) -> str:
        """The table of jobs per rule, once, where nothing else names the rules."""
        first, self.table = self.table, False
        return self.theirs.format(record).rstrip() if first else ""

    def _job_info(self, record: Any) -> str:
        names = _named(record.output)
        self.started[record.jobid] = (time.monotonic(), names)
        return f"start    {names}  ({record.rule_name})" if record.output and not self.dry else ""

    def _job_finished(self, record: Any) -> str:
        start, names = self.started.pop(record.job_id, (time.monotonic(), ""))
        self.ended = f"done     {names}  ({time.monotonic() - start:.1f} s" if names else ""
        return ""

    def _progress(self, record: Any) -> str:
        text, self.ended = self.ended, ""
        return f"{text}, {record.done} of {record.total})" if text else ""

    def _job_error(self, record: Any) -> str:
        names = _named(record.output)
        by, self.signal = self.signal, None
        ended = f"{record.rule_name} was ended by {by}{HINTS.get(by, '')}; " if by else ""
        words = (record.rule_msg or "").partition(FURTHER)[0].strip()  # of a job elsewhere
        ended = f"{words}; " if words else ended
        lines = [f"failed   {names}: {ended}log: {', '.join(record.log)}"]
        if self.theirs.show_failed_logs:
            from snakemake.logging import show_logs

            lines += show_logs(record.log)
        elif by or STATUS in words or (record.rule_msg and not words):
            lines += [f"    {line}" for line in _tail(record.log)]
        return "\n".join(lines)


def _named(outputs: list[str]) -> str:
    """The first of a job's outputs, and how many more: an archive has one per rank."""
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"{outputs[0]}{more}" if outputs else ""


def signal_of(number: int) -> str:
    """SIGKILL of 9."""
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def _tail(logs: list[str]) -> list[str]:
    """The last lines of the log that a step wrote."""
    for log in logs:
        with contextlib.suppress(OSError):
            lines = Path(log).read_text(errors="replace").splitlines()
            if found := [line for line in lines if not RUNNER.match(line)][-TAIL:]:
                return found
    return []


def install_lint() -> None:
    """Snakemake asks for conda and for params; here a lock names a rule's software, by its digest."""
    from snakemake.linting import Lint
    from snakemake.linting.rules import RuleLinter

    names = RuleLinter.lint_not_used_params.__defaults__
    if names and not names[0] >= OURS:
        RuleLinter.lint_not_used_params.__defaults__ = (names[0] | OURS, *names[1:])

    def lint_missing_software_definition(_, rule: Any) -> Iterator[Any]:
        named = {name for name, _ in (*rule.input._allitems(), *rule.params._allitems())}
        if not rule.norun and not named & {"lock", VOLATILE}:
            yield Lint(
                title="No input `lock`",
                body="The lock of its toolchain is what tells one version of a rule's software from "
                "another: without it a result of the old one is served for the new.",
            )

    RuleLinter.lint_missing_software_definition = lint_missing_software_definition


def changed(contents: Contents, decision: Decision, kind: str) -> list[str]:
    """Outputs that stand and would be built anew, since what `--list-changes` asks of has changed."""
    found = []
    for job in decision.run:
        if job not in contents.keys:
            continue
        now = contents.keys[job][1]
        record = nearest(contents.store, job, now).record
        then = contents.store.config(record).get("fields", now) if record else now
        if any(then[name] != now[name] for name in FIELDS[kind]):
            found += [path for path in job.writes if Path(path).exists()]
    return found


def metadata(contents: Contents, job: Job, path: str) -> dict[str, Any] | None:
    """What `--report` asks of an output: the rule, and when it was built.

    A blob's time is the end of the job that gave it first, and a restored file is that blob.
    """
    record = contents.records.get(job)
    if Path(path).exists():
        end = Path(path).stat().st_mtime
    elif record:
        end = record.used
    else:
        return None
    seconds = contents.store.config(record).get("cost", {}).get("seconds", 0.0) if record else 0.0
    named = {"rule": job.rule, "job_hash": hash(job), "conda_env": None, "container_img_url": None}
    return {**named, "starttime": end - seconds, "endtime": end}
