"""What was decided to come back from the store, put in its place."""

import os
import sys
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decision
from ingot.driver.catalogue.job import Job
from ingot.store import aside


def restore(contents: Contents, decision: Decision) -> set[Job]:
    """Put the files back; the jobs whose files could not be, for which all is decided again."""
    bad = fetch(contents, decision)
    with contents.held():
        for job, files in decision.restore.items():
            for path, output in files.items():
                try:
                    if job in bad:
                        continue
                    aside.keep(contents.store, path)
                    contents.store.restore(output, Path(path))
                except OSError as error:
                    _give_up(contents, job, path, error)
                    bad.add(job)
    return bad


def fetch(contents: Contents, decision: Decision) -> set[Job]:
    """Bring what the shared cache has and the store lacks; the jobs whose files do not come.

    gc does not wait for it: the run's lease keeps what has come.
    """
    bad = set()
    for job, files in decision.restore.items() if contents.shared.remote else ():
        for path, output in files.items():
            try:
                if job not in bad and not contents.store.whole(output):
                    contents.shared.remote.fetch(output, path)
            except (OSError, Refused) as error:
                _give_up(contents, job, path, error)
                bad.add(job)
    return bad


def _give_up(contents: Contents, job: Job, path: str, error: Exception) -> None:
    print(f"{path}: not restored ({error}); it is built again", file=sys.stderr)
    contents.shared.give_up(job)


def make_way(contents: Contents, decision: Decision) -> None:
    """Before anything is built: what is a user's own is moved aside, and links into the store go.

    They are read-only: Snakemake would take one for a protected output.
    """
    for job in decision.run:
        for path in job.writes if job.cached and job not in contents.finished else ():
            aside.keep(contents.store, path)
    for path in (Path(path) for job in decision.run for path in job.writes):
        if path.is_file() and not path.is_symlink() and not os.access(path, os.W_OK):
            path.unlink()
