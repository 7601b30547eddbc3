"""Whose an output is: a run of Snakemake claims it, and its step says which file it put there.

Two runs may build one output at a time: when the first was killed, its step may go on, on another
machine.  Below $INGOT_NOTES each output has `<name>.claim`, by the driver: the run that builds it now.  A
step of another run puts nothing in place.  In `<name>` a step leaves what it put there, on which node,
and its peak memory: the driver takes in what its own claim gave, whatever stands there since.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import resource
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused


def leave(path: Path, partial: Path) -> None:
    """Say what is about to be put at `path`, and by whom.  Sampled memory misses a short step's peak."""
    if note := _note(path):
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        peak = sum(resource.getrusage(one).ru_maxrss for one in who) * 1024
        found = {"run": os.environ.get("INGOT_RUN"), "file": identity(partial), "peak_rss": peak}
        _write(note, {**found, "cores": cores(), "node": platform.node()})


def placed(path: Path) -> None:
    """It stands there now, and is the step's until a ctime changes, which no program can set."""
    if (note := _note(path)) and (found := _read(note)):
        _write(note, {**found, "newest": _newest(path)})


def untouched(path: Path | str) -> bool:
    """Is what stands at `path` what its step put there, each file of a folder, too?  When in doubt, no."""
    try:
        found = left(path)
        return found.get("file") == identity(path) and found.get("newest") == _newest(Path(path))
    except OSError:
        return False


def _newest(path: Path) -> int:
    """The latest ctime, in nanoseconds, of a file, or of a folder and all that is in it."""
    return max(
        one.lstat().st_ctime_ns for one in (path, *(path.rglob("*") if path.is_dir() else ()))
    )


def cores() -> int:
    """How many this process may use: a job of SLURM those that it was given."""
    return int(os.environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))


def left(path: Path | str) -> dict[str, Any]:
    """What the step of `path` left: `run`, `file`, `peak_rss` (bytes), `cores`, `node`; or nothing."""
    return _read(_note(path))


def identity(path: Path | str) -> list[int]:
    """Which file this is, on every machine that sees it; of a folder, whose times change, the inode."""
    state = Path(path).stat()
    more = [] if stat.S_ISDIR(state.st_mode) else [state.st_size, state.st_mtime_ns]
    return [state.st_ino, *more]


def writer() -> str:
    """Who writes, in a temporary name: the run, and the node, since two nodes give the same process ids."""
    run = os.environ.get("INGOT_RUN", "")
    return f"{run[:8] or 'by-hand'}-{_here()}"


def elsewhere(path: Path, partial: Path) -> bool | None:
    """May another node still put `partial` at `path`?  None when it is of this node.

    Not when a run has claimed `path`: it has one job there, and this process is of it.
    """
    found = re.search(r"-([0-9a-f]{8})\.\d+\.partial$", partial.name)
    if not found or found[1] == _here():
        return None
    return "run" not in claimed(path)


def _here() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def claim(path: Path | str, found: dict[str, Any]) -> None:
    """From now on, only a step of `found["run"]` may put something at `path`; who did is forgotten."""
    if note := _note(path):
        _write(note.with_suffix(".claim"), found)
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)


def add(path: Path | str, more: dict[str, Any]) -> None:
    """Say more of the claim on `path`."""
    if note := _note(path):
        _write(note.with_suffix(".claim"), {**claimed(path), **more})


def claimed(path: Path | str) -> dict[str, Any]:
    """The claim on `path`; empty when nobody has made one."""
    note = _note(path)
    return _read(note and note.with_suffix(".claim"))


def stop_if_taken(path: Path) -> None:
    """Refuse to go on with an output that another run has claimed since."""
    run, owner = os.environ.get("INGOT_RUN"), claimed(path).get("run")
    if run and owner and run != owner:
        raise Refused(
            f"{path}: another run of Snakemake builds it now; what this one made is discarded"
        )


def given(path: Path | str, run: str) -> bool:
    """Did a step of this run put there what stands at `path`?  Also where no step of ours has said so."""
    note = left(path)
    try:
        return not note or (note.get("run") == run and note.get("file") == identity(path))
    except OSError:
        return False


def finished(paths: Iterable[Path | str], wanted: dict[str, Any]) -> bool:
    """Did the run whose claims say what is `wanted` put there all that stands at `paths`?"""
    claims = [(path, claimed(path)) for path in paths]
    return all(
        said and {**said, **wanted} == said and untouched(path) and given(path, said["run"])
        for path, said in claims
    )


def _note(path: Path | str) -> Path | None:
    """None when a step is run by hand."""
    folder = os.environ.get("INGOT_NOTES")
    name = hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:32]
    return Path(folder, name) if folder else None


def _write(note: Path, found: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk stops the step where it writes what counts
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps(found))
        partial.replace(note)


def _read(note: Path | None) -> dict[str, Any]:
    try:
        found = json.loads(note.read_text()) if note else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
