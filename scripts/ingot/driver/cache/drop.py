"""Rolling disk, `--config keep=targets`: an intermediate goes when its last reader is done.

Only what this run made, and only while nobody else uses it; its record stays, so that the plan
knows what it held, and a later build that needs its bytes makes them again.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ingot.driver.cache.decide import cached, members
from ingot.driver.commands import store as storekeeping
from ingot.files.atomic import remove
from ingot.store import leases


def drop(dag) -> None:
    """Remove what no job of this run needs any more."""
    plan, wanted, spent = dag.plan, targets(dag), []
    for job in dag._finished:
        if not cached(job):
            continue
        for path in job.output:
            named = path in wanted
            if (
                not named
                and plan.made.get(path)
                and os.path.lexists(path)
                and not _read(dag, job, path)
            ):
                spent.append(path)
    if spent and plan.writable:
        with plan.store.locked("content"):  # nobody restores meanwhile
            _remove(plan, spent)


def targets(dag) -> set[str]:
    """The files that were asked for: by name, or as what a rule without output, such as `all`, needs."""
    found = set(dag.targetfiles)
    for job in dag.targetjobs:
        found |= set(job.input if not job.output else ())
    return found


def _read(dag, job, path: str) -> bool:
    """Is there a job that has yet to read it?"""
    waiting = (set(dag.decision.run) | set(members(dag._running))) - dag._finished
    return any(path in dag.dependencies[reader].get(job, ()) for reader in waiting)


def _bundled(plan) -> Iterator[str]:
    """What the folders of this run hold links of: dropping it would free nothing."""
    for job, record in plan.records.items():
        stands = any(os.path.lexists(path) for path in job.output)
        for output in record.outputs if record and stands else ():
            for entry in output.get("entries", ()):
                yield entry.get("digest", "")


def _others(plan) -> Iterator[str]:
    """What the actions of other runs gave that are alive."""
    keys = {key for lease in leases.alive(plan.store, but_ours=True) for key in lease["keys"]}
    for record in plan.store.records() if keys else ():
        if record.key in keys:
            yield from (layer["digest"] for layer in record.manifest["layers"])


def _remove(plan, spent: list[str]) -> None:
    for path in spent:
        with contextlib.suppress(OSError):
            remove(Path(path))
    used = set(storekeeping.standing(plan.store)) | set(_others(plan)) | set(_bundled(plan))
    for name in {name for path in spent for name in plan.blobs[path]} & plan.fresh - used:
        plan.fresh.discard(name)
        with contextlib.suppress(OSError):
            plan.store.blob(name).unlink()
