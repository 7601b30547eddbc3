"""Nothing half-written is ever seen under its final name."""

import glob
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ingot.base import claim, digest, pieces
from ingot.base.entry import lives
from ingot.base.refused import Refused


@dataclass
class Partial:
    """A file on its way: its temporary path, and its SHA-256 once the writer knows it."""

    path: Path
    sha256: str | None = None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it to `path` on success, remove it in any case.

    What a killed process left under such a name is removed first.  A file's digest goes on record.
    """
    with replacing_hashed(path) as partial:
        yield partial.path


@contextmanager
def replacing_hashed(path: Path) -> Iterator[Partial]:
    """The same for a writer that hashes as it writes and sets `sha256`: the file is not read again."""
    claim.stop_if_taken(path)
    kept = pieces.partial(
        path
    )  # what is written of a checkpoint in pieces, the next writer goes on with
    with nullcontext(kept) if kept else partial_of(path) as place:
        partial = Partial(place)
        yield partial
        _stop_if_orphaned(path)
        claim.stop_if_taken(path)
        claim.leave(path, place)
        if place.is_dir():
            replace_folder(place, path)
        else:
            digest.finished(place, path, partial.sha256)
        claim.placed(path)


@contextmanager
def partial_of(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, gone in the end, as are those of killed processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        streamed = pieces.goes_on(left)
        there = claim.elsewhere(path, left) if streamed is None else streamed
        if not (alive(left) if there is None else there):
            remove(left)
    partial = path.with_name(f".{path.name}.{claim.writer()}.{os.getpid()}.partial")
    remove(partial)
    try:
        yield partial
    finally:
        remove(partial)


def replace_folder(partial: Path, path: Path) -> None:
    """Rename a folder to `path`; what was there is removed once the new one stands."""
    old = path.with_name(f".{path.name}.{os.getpid()}.old.partial")
    if path.exists() or path.is_symlink():
        path.rename(old)
    partial.rename(path)
    remove(old)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _stop_if_orphaned(path: Path) -> None:
    """When Snakemake was killed, a new one may be building the same, of other inputs."""
    parent = os.environ.get("INGOT_PARENT")
    if parent and not lives(parent):
        raise Refused(f"{path}: Snakemake has ended, so the output was discarded; run it again")


def alive(partial: Path) -> bool:
    """Does a process that the temporary name `partial` speaks of go on?"""
    parts = [part for part in partial.name.split(".") if part not in ("partial", "old", "link")]
    pids = list(itertools.takewhile(str.isdigit, reversed(parts)))  # and of a thread
    return any(map(lives, pids[:2]))
