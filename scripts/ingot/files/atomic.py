"""Nothing half-written is ever seen under its final name."""

import contextlib
import glob
import hashlib
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.files import digest


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it to `path` on success, remove it in any case.

    What a killed process left under such a name is removed first.  The digest of a file goes on
    record: the one that the writer put into `digest.written`, or else that of a reading.
    """
    with partial_of(path) as partial:
        yield partial
        _stop_if_orphaned(path)
        _note_memory(path)
        if partial.is_dir():
            replace_folder(partial, path)
        else:
            digest.finished(partial, path)


def memory_note(path: Path | str) -> Path | None:
    """Where a step leaves its peak memory, in bytes, for the orchestrator; None when run by hand."""
    folder = os.environ.get("INGOT_NOTES")
    name = hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:32]
    return Path(folder, name) if folder else None


def _note_memory(path: Path) -> None:
    """Sampling from outside misses the peak of a short step, and half of a long one's."""
    if note := memory_note(path):
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        peak = sum(resource.getrusage(one).ru_maxrss for one in who) * 1024
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(peak))


@contextmanager
def partial_of(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, gone in the end, as are those of killed processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if not _alive(left.suffixes[-2][1:]):
            remove(left)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
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
    if parent and not Path("/proc", parent).exists():
        sys.exit(f"{path}: Snakemake is gone, so this is not put in place; run it again")


def _alive(pid: str) -> bool:
    return not pid.isdigit() or Path("/proc", pid).exists()
