"""Jobs here at once: as many as this machine's memory holds, by their forecasts.

Two verifications that take half of it and more ran side by side, and the kernel killed one.  Snakemake's
scheduler counts it as it counts cores, under a name of ours: a rule's own mem_mb is what its author says.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ingot.base import machine
from ingot.base.refused import Refused
from ingot.driver.forecast.schedule import size

NAME = "_ingot_mb"
THEIRS = "mem_mb"  # of --resources, which sets another limit, and of --set-resources, for one rule
MB = 10**6
ORIGINAL: dict[str, Any] = {}  # Snakemake's own, by name
TAKES: dict[Any, int] = {}  # MB, by Snakemake's job: the scheduler gives back what it took


def install() -> None:
    """Of a run whose jobs are done here."""
    from snakemake.jobs import Job

    ORIGINAL["scheduler_resources"] = Job.scheduler_resources
    Job.scheduler_resources = property(asked)


class Room(NamedTuple):
    """How many jobs may run at once, and the bytes that they share; inf: they are done elsewhere."""

    jobs: int
    memory: float


def room(workflow: Any, cluster: Any) -> Room:
    """As the command line says: --jobs or --cores, and --resources mem_mb; else what is free here."""
    settings = workflow.resource_settings
    jobs = settings.nodes or settings.cores or machine.cores()
    if cluster or not workflow.local_exec:
        return Room(jobs, math.inf)
    said = workflow.global_resources.get(THEIRS)
    free = said.value * MB if said and said.value is not None else machine.available()
    # of less than the unit that is counted in, each job would take nothing
    return Room(jobs, max(free, MB))


def by_rule(said: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of each job of a rule, as --set-resources RULE:mem_mb=N says, where N is a number."""
    found = {rule: own[THEIRS] for rule, own in said.items() if THEIRS in own}
    return {rule: one.value * MB for rule, one in found.items() if not one.is_evaluable()}


def limit(scheduler: Any, most: float) -> None:
    """`most`: bytes for all jobs of this scheduler at once."""
    if most < math.inf:
        for known in (scheduler.global_resources, scheduler.resources):
            known[NAME] = int(most // MB)


def asked(job: Any) -> dict[str, Any]:
    """A job's resources and its memory; one that takes more than there is has all of it."""
    found = ORIGINAL["scheduler_resources"].fget(job)
    scheduler = job.dag.workflow.scheduler
    most = scheduler and scheduler.global_resources.get(NAME)
    if most is None:
        return found
    if job not in TAKES:
        TAKES[job] = takes(job, found)
    return {**found, NAME: min(TAKES[job], most)}


def takes(job: Any, found: dict[str, Any]) -> int:
    """MB: what the command line says of its rule, or its forecast."""
    if THEIRS in job.dag.workflow.resource_settings.overwrite_resources.get(job.rule.name, {}):
        return found[THEIRS]
    with contextlib.suppress(Refused):  # by a config.json just fetched: said as the job starts
        forecast = job.dag.ingot.costs.of(job.dag.ingot.job(job)) if job.output else None
        return forecast.memory // MB if forecast else 0
    return 0


def said(jobs: Iterable[tuple[str, int]], room: Room) -> str:
    """A line where so many jobs at once, by name and bytes, may wait, or one takes more than there is."""
    if room.memory == math.inf:
        return ""
    largest = sorted(jobs, key=lambda one: one[1], reverse=True)[: room.jobs]
    name, needed = largest[0] if largest else ("", 0)
    if needed > (here := machine.memory()):
        return (
            f"{name}: takes some {size(needed)} of memory, and this machine has {size(here)}; the kernel "
            "may end it: build it on a larger one, or on a cluster"
        )
    if len(largest) > 1 and sum(bytes_ for _, bytes_ in largest) > room.memory:
        return f"{size(room.memory)} of memory are free: jobs that take more together run in turn"
    return ""
