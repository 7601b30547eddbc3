"""Jobs here at once: as many as this machine's memory holds, by their forecasts.

Two verifications that take half of it and more ran side by side, and the kernel killed one.
"""

import math
from collections.abc import Iterable
from typing import Any

from ingot.base import machine
from ingot.driver.forecast.schedule import size

NAME = "mem_mb"  # Snakemake's word: --resources mem_mb=64000 sets another limit
MB = 10**6
ORIGINAL: dict[str, Any] = {}  # Snakemake's own, by name
TAKES: dict[Any, int] = {}  # MB, by Snakemake's job: the scheduler gives back what it took


def install() -> None:
    """Of a run whose jobs are done here."""
    from snakemake.jobs import Job

    ORIGINAL["scheduler_resources"] = Job.scheduler_resources
    Job.scheduler_resources = property(asked)


def limit(workflow: Any) -> None:
    """What is free as the run begins, unless the command line says."""
    if NAME not in workflow.global_resources:
        workflow.global_resources[NAME] = machine.available() // MB


def free(cluster: Any) -> float:
    """Bytes for all jobs at once: those of this machine, unless they are done on a cluster."""
    return math.inf if cluster else machine.available()


def asked(job: Any) -> dict[str, Any]:
    """A job's resources, and its memory: all there is, where it takes more, so that it runs alone."""
    found, session = ORIGINAL["scheduler_resources"].fget(job), getattr(job.dag, "ingot", None)
    most = job.dag.workflow.global_resources.get(NAME)
    if session is None or most is None or most.value is None or not job.output:
        return found
    if job not in TAKES:
        forecast = session.costs.of(session.job(job))
        TAKES[job] = found.get(NAME, forecast.memory // MB if forecast else 0)
    return {**found, NAME: min(TAKES[job], most.value)}


def larger(jobs: Iterable[tuple[str, int]]) -> str:
    """A line where the largest job, a name and bytes, takes more than this machine has; else empty."""
    name, needed = max(jobs, key=lambda one: one[1], default=("", 0))
    if needed <= (here := machine.memory()):
        return ""
    return (
        f"{name}: takes some {size(needed)} of memory, and this machine has {size(here)}: it may be "
        "killed; build it on a larger one, or on a cluster"
    )
