"""What a run is going to do: a row per job of a dry run, and what all of it will take."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ingot.driver.cache.decide import Decision
from ingot.driver.catalogue.job import Graph, Job
from ingot.driver.forecast.costs import Costs, Forecast
from ingot.driver.forecast.schedule import duration, schedule, size, tasks_of
from ingot.driver.show.status import MANY, kind
from ingot.driver.toolchains import toolchains


def table(
    decision: Decision, costs: Costs, asks: Callable[[Job], str], at_once: int, most: float
) -> Iterator[str]:
    """A row per job, many of a kind as one, which takes from the first's start to the last's end.

    So many jobs at once in `most` bytes, as the total below the table has them.
    """
    if decision.restore or decision.run:
        yield f"{'':9}{'takes':>8}{'memory':>10}{'disk':>10}"
    for files in decision.restore.values():
        for path, output in files.items():
            yield f"restore  {'-':>8}{'-':>10}{size(output['size']):>10}  {path}"
    kinds: dict[str, list[Job]] = {}
    for job in decision.run:
        kinds.setdefault(kind(job), []).append(job)
    forecasts = {job: one for job in decision.run if (one := costs.of(job))}
    starts: dict[str, float] = {}  # by the first output; where some row needs it
    if any(len(alike) >= MANY for alike in kinds.values()):
        tasks = list(tasks_of(_described(forecasts)))
        starts = schedule(tasks, set(), at_once, False, most).started
    for job, why in decision.run.items():
        alike = kinds[kind(job)]
        many = len(alike) >= MANY
        if many and job is not alike[0]:
            continue
        shown = [each for each in (alike if many else [job]) if each in forecasts]
        found = [forecasts[each] for each in shown]
        numbers = f"{'-':>8}{'-':>10}{'-':>10}"
        if found:
            begun = [starts.get(each.writes[0], 0.0) if each.writes else 0.0 for each in shown]
            ends = [at + one.seconds for at, one in zip(begun, found, strict=True)]
            numbers = (
                f"{duration(max(ends) - min(begun)):>8}"
                f"{size(max(one.memory for one in found)):>10}"
                f"{size(sum(one.written for one in found)):>10}"
            )
        names = ", ".join(map(toolchains.shown, job.writes))
        if many:
            names = f"{len(alike)} files of {job.writes[0].rpartition('/')[0]}"
        yield f"run      {numbers}  {names}  ({job.rule}: {why}){asks(job)}"


def plan(
    graph: Graph,
    decision: Decision,
    costs: Costs,
    keeps: str,
    store: Path,
    at_once: int,
    most: float,
) -> dict[str, Any]:
    """What the run takes, of so many jobs at once in `most` bytes; how its disk fills: [s, bytes].

    `free`: bytes of the disk of artifacts/ or of the `store`'s, whichever has less.
    """
    found = _described({job: one for job in decision.run if (one := costs.of(job))})
    way = schedule(list(tasks_of(found)), graph.asked(), at_once, keeps == "targets", most)
    known = len(found) == len(decision.run)
    line = [[at, sum(sizes.values())] for at, sizes in way.timeline]
    return {"seconds": way.seconds, "memory": way.memory, "disk": way.disk, "disk_at": line,
            "download": way.download, "whole": known, "free": _free(store)}  # fmt: skip


def _described(forecasts: dict[Job, Forecast]) -> list[dict[str, Any]]:
    """Jobs that run, as schedule.tasks_of takes them."""
    return [
        {"action": "run", "outputs": job.writes, "inputs": job.reads,
         "forecast": {"files": one.files, "seconds": one.seconds, "memory": one.memory,
                      "download": one.download}}
        for job, one in forecasts.items() if job.writes
    ]  # fmt: skip


def _free(store: Path) -> int:
    here = Path("artifacts") if Path("artifacts").exists() else Path()
    return min(shutil.disk_usage(one).free for one in (here, store) if one.exists())
