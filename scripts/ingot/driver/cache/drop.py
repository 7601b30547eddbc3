"""Rolling disk, `--config keep=targets`: an intermediate goes when its last reader is done.

Only what this run made, and only while nobody else uses it; its record stays, so that the key of what
was made from it is known, and a later build that needs its bytes makes them again.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ingot.base.atomic import remove
from ingot.driver.cache.contents import Contents
from ingot.driver.cache.ingest import Ingest
from ingot.driver.catalogue.job import Job
from ingot.store import gc, leases


def drop(contents: Contents, ingest: Ingest, waiting: set[Job]) -> None:
    """Remove what no job of this run needs any more; `waiting` have yet to run, or are running."""
    graph, wanted, spent = contents.graph, contents.graph.asked(), []
    for job in contents.finished:
        for path in job.writes if job.cached else ():
            read = any(path in graph.needs[reader].get(job, ()) for reader in waiting)
            if (
                not read
                and path not in wanted
                and contents.made.get(path)
                and os.path.lexists(path)
            ):
                spent.append(path)
    if spent and contents.writable:
        with contents.store.locked("content"):  # nobody restores meanwhile
            _remove(contents, ingest, spent)


def _remove(contents: Contents, ingest: Ingest, spent: list[str]) -> None:
    for path in spent:
        with contextlib.suppress(OSError):
            remove(Path(path))
    store = contents.store
    used = set(gc.in_folders(store)) | set(_of_other_runs(contents)) | set(_in_bundles(contents))
    for name in {name for path in spent for name in ingest.blobs[path]} & ingest.fresh - used:
        ingest.fresh.discard(name)
        with contextlib.suppress(OSError):
            store.blob(name).unlink()


def _in_bundles(contents: Contents) -> Iterator[str]:
    """What the folders of this run hold links of: dropping it would free nothing."""
    for job, record in contents.records.items():
        here = any(os.path.lexists(path) for path in job.writes)
        for output in record.outputs if record and here else ():
            for entry in output.get("entries", ()):
                yield entry.get("digest", "")


def _of_other_runs(contents: Contents) -> Iterator[str]:
    """What the actions of other running builds gave."""
    keys = {key for lease in leases.alive(contents.store, but_ours=True) for key in lease["keys"]}
    for record in contents.store.records() if keys else ():
        if record.key in keys:
            yield from (layer["digest"] for layer in record.manifest["layers"])
