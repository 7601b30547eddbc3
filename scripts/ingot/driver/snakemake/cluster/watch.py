"""What a person is told of submitted jobs while they wait and run: each change, once.

A job that waits for what does not come by itself is named within a minute; of one that runs the last
progress line is passed on; one that SLURM has forgotten is judged by what its step left.
"""

import asyncio
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.driver.snakemake.cluster import slurm

OFTEN = 30.0  # seconds between two looks, at most; Snakemake's plugin would wait three minutes
PAUSE = 0.5  # seconds
FORGOTTEN = 3  # looks in which a job is not listed
NEVER = re.compile(
    r"Partition(TimeLimit|NodeLimit|Down|Inactive)|BadConstraints|Invalid(Account|QOS)|JobHeld\w+|"
    r"(Account|QOS)NotAllowed|DependencyNeverSatisfied|(Assoc|QOS)Max\w*PerJob\w*|QOSMin\w+|"
    r"ReqNodeNotAvail.*|NodesDown.*|Nodes_required_for_job_are_DOWN.*"
)
SOON = {"None", "Resources", "Priority", "BeginTime", ""}  # no news
PROGRESS = re.compile(r": +\d+ % .* left")
END = 4096  # bytes of a log that are looked at


@dataclass(frozen=True)
class Seen:
    """One job as squeue lists it."""

    state: str
    reason: str
    node: str


@dataclass
class Watch:
    """What was said of each SLURM job, by its id."""

    said: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)

    def look(self, names: dict[str, tuple[str, Path]]) -> set[str]:
        """Tell what is new of the jobs, each with an output and a log; which of them are forgotten."""
        listed = seen()
        if listed is None:
            return set()
        for job_id, (output, log) in names.items():
            self.unseen[job_id] = 0 if job_id in listed else self.unseen.get(job_id, 0) + 1
            text = job_id in listed and line(job_id, output, listed[job_id], log)
            if text and self.said.get(job_id) != text:
                self.said[job_id] = text
                print(text, file=sys.stderr, flush=True)
        late = {job_id for job_id in names if self.unseen[job_id] >= FORGOTTEN}
        return {job_id for job_id in late if not slurm.call("scontrol", "show", "job", job_id)}


def seen() -> dict[str, Seen] | None:
    """This user's jobs, those that ended not long ago too; None when no controller answers."""
    words = ("squeue", "--states=all", f"--user={os.getuid()}", "-o", "%i|%T|%r|%N")
    lines = slurm.call(*words).splitlines()  # the first is a header, of an empty list too
    rows = (line.split("|", 3) for line in lines[1:])
    return {row[0]: Seen(*row[1:]) for row in rows if len(row) == 4} if lines else None


def line(job_id: str, output: str, job: Seen, log: Path) -> str:
    """What is worth saying of a job; or empty."""
    if job.state == "PENDING" and NEVER.fullmatch(job.reason):
        return (
            f"waits    {output}: SLURM job {job_id} cannot start ({job.reason}), and will not by itself; "
            f"change it with scontrol update, or stop this run; see `scontrol show job {job_id}`"
        )
    if job.state == "PENDING" and job.reason not in SOON:
        return f"waits    {output}: SLURM job {job_id} ({job.reason})"
    progress = last_progress(log) if job.state == "RUNNING" else ""
    return f"runs     {progress}  (SLURM job {job_id} on {job.node})" if progress else ""


def last_progress(log: Path) -> str:
    """The last progress line of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - END))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return next((one for one in reversed(text.splitlines()) if PROGRESS.search(one)), "")


def check(original: Any, given: Any) -> Any:
    """In place of the executor's check_active_jobs: the same, with these words, and never so late."""

    async def check_active_jobs(executor: Any, active_jobs: list[Any]) -> Any:
        session = executor.workflow.dag.ingot
        infos = {info.external_jobid: info for info in active_jobs}
        names = {
            job_id: (str(info.job.output[0]), Path(info.aux["slurm_logfile"]))
            for job_id, info in infos.items()
        }
        forgotten = session.cluster.watch.look(names) if names else set()
        for job_id in forgotten:
            info = infos.pop(job_id)
            if given(session, info.job):
                executor.report_job_success(info)
            else:
                executor.report_job_error(
                    info, f"SLURM job {job_id}: SLURM knows it no more, and it put nothing in place"
                )
        async for info in original(executor, list(infos.values())):
            yield info
        soon = min(executor.next_seconds_between_status_checks, OFTEN)
        executor.next_seconds_between_status_checks = soon

    return check_active_jobs


async def sleep(executor: Any) -> None:
    """In place of the executor's own: a run that ends does not wait for its next look."""
    end = time.monotonic() + executor.next_seconds_between_status_checks
    while executor.wait and time.monotonic() < end:
        await asyncio.sleep(PAUSE)
