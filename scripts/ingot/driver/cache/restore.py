"""What was decided to come back from the store, put in its place."""

import os
import sys
from pathlib import Path

from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decision
from ingot.driver.job import Job
from ingot.storekeeping import aside


def restore(contents: Contents, decision: Decision) -> set[Job]:
    """Put the files back; the jobs whose files could not be, for which all is decided again."""
    bad = set()
    with contents.held():
        for job, files in decision.restore.items():
            for path, output in files.items():
                try:
                    aside.keep(contents.store, path)
                    contents.store.restore(output, Path(path))
                except OSError as error:
                    print(f"{path}: not restored ({error}); it is built again", file=sys.stderr)
                    bad.add(job)
    return bad


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
