"""What a run says of its decisions: lines on stderr, or JSON for the `ingot` commands."""

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.cache import key
from ingot.driver.cache.contents import Contents, UnknownInput, stamps
from ingot.driver.cache.decide import Decision
from ingot.driver.cache.differences import nearest
from ingot.driver.cache.dry_run import ANSWER, DETAILS
from ingot.driver.catalogue.job import Job
from ingot.driver.forecast import schedule
from ingot.driver.forecast.costs import Costs
from ingot.driver.show import decided
from ingot.driver.snakemake import memory
from ingot.driver.snakemake.cluster.jobs import Cluster

LINES = 40  # of a dry run, that are shown
FEW = 10  # of a run
EXPECTED = re.compile(r"new|.* will be decided once .*|.* is missing")


def tell(
    contents: Contents,
    decision: Decision,
    costs: Costs,
    dry: bool,
    room: memory.Room,
    cluster: Cluster | None = None,
    theirs: Mapping[Job, Any] = MappingProxyType({}),
) -> None:
    """The decisions: of a dry run as a table; as JSON too when an `ingot` command asks.

    `room` is for jobs at once.  With a cluster, a dry run also says what each job would ask of it.
    """
    if dry:
        asks = cluster.described if cluster else lambda _: ""
        lines = list(decided.table(decision, costs, asks, *room))
    else:
        lines = list(_news(decision))
    for line in lines[: LINES if dry else FEW] if dry or len(lines) <= FEW else ():
        print(line, file=sys.stderr)
    if len(lines) > (LINES if dry else FEW):
        restored = sum(map(len, decision.restore.values()))
        print(
            f"total: {restored} files to restore, {len(decision.run)} jobs to run", file=sys.stderr
        )
    needs = ((job.writes[0], one.memory) for job in decision.run if (one := costs.of(job)))
    if line := memory.said(needs, room):
        print(line, file=sys.stderr)
    if decision.run and not (dry or contents.writable):
        print(
            f"{contents.store.root}: not writable, so what this run builds is on no record there; set "
            "INGOT_STORE to a folder that may be written",
            file=sys.stderr,
        )
    if answer := os.environ.get(ANSWER):
        found = described(contents, decision, costs, cluster)
        for job, one in zip(contents.graph.jobs, found, strict=True):
            with contextlib.suppress(UnknownInput, OSError):
                if job.cached:
                    one |= {
                        "recipe": contents.shared.recipe(job),
                        "fields": contents.shared.recipe_fields(job),
                    }
        if os.environ.get(DETAILS):
            for job, one in zip(contents.graph.jobs, found, strict=True):
                one |= details(job, contents, theirs[job]) if job in decision.run else {}
        Path(answer).write_text(json.dumps(found))
    elif dry and decision.run:
        jobs = described(contents, decision, costs)
        asked = contents.graph.asked()
        print(schedule.summary(jobs, asked, *room), file=sys.stderr)


def details(job: Job, contents: Contents, theirs: Any) -> dict[str, Any]:
    """For a command of ours that runs a job itself, or puts it on record; `theirs` is Snakemake's job."""
    found: dict[str, Any] = {"stamps": stamps(job), "benchmark": job.benchmark}
    found |= {"command": str(theirs.shellcmd), "log": str(next(iter(theirs.log), ""))}
    if job in contents.keys:
        about = {**key.about(job), "way": contents.way(job)}
        found |= {"key_fields": contents.keys[job][1], "about": about}
    return found


def _news(decision: Decision) -> Iterator[str]:
    """What a run does that nobody would expect: it restores, or builds again."""
    for job, files in decision.restore.items():
        for path, output in files.items():
            yield f"restore  {path}  ({output['size'] / 1e6:,.1f} MB, {job.rule})"
    for job, why in decision.run.items():
        if not EXPECTED.fullmatch(why):
            yield f"run      {', '.join(job.writes)}  ({why})"


def spared(jobs: Iterable[Job], decision: Decision) -> None:
    """Jobs that need not run after all."""
    for job in jobs:
        text = (
            "unchanged, restored from the store" if job in decision.restore else "no longer needed"
        )
        print(f"{job.writes[0]}: {text}", file=sys.stderr)


def described(
    contents: Contents, decision: Decision, costs: Costs, cluster: Cluster | None = None
) -> list[dict[str, Any]]:
    """Each job of the run: what is done with it and why, and what it will take."""
    found = [_described(job, contents, decision, costs) for job in contents.graph.jobs]
    for job, one in zip(contents.graph.jobs, found, strict=True) if cluster else ():
        with contextlib.suppress(Refused):  # said already
            if one["action"] == "run" and not cluster.here(job):
                one["asks"] = cluster.resources(job)
    return found


def _described(job: Job, contents: Contents, decision: Decision, costs: Costs) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rule": job.rule,
        "step": job.step,
        "outputs": job.writes,
        "inputs": job.reads,
        "model": job.wildcards.get("model"),
        "gpus": costs.gpus(job),
    }
    if known := contents.known_key(job):
        found |= {"key": known}
        if job in decision.run and job in contents.keys:
            fields = contents.keys[job][1]
            near = nearest(contents.store, job, fields)
            found |= {"differences": near.differences}
            if near.record:
                titles = [output["title"] for output in near.record.outputs]
                found |= {"nearest": {"key": near.record.key, "outputs": titles}}
    if job in decision.run:
        expected = costs.of(job)
        found |= {"forecast": dataclasses.asdict(expected) if expected else None}
        return {**found, "action": "run", "why": decision.run[job]}
    if job in decision.restore:
        return {**found, "action": "restore", "files": list(decision.restore[job])}
    here = bool(job.writes) and all(os.path.exists(path) for path in job.writes)
    return {**found, "action": "none", "why": "up to date" if here else "not needed"}
