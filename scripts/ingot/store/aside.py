"""A user's own file where an artifact goes: moved aside and named, never replaced.

Bytes that the store has are lost by nothing; a file that a step put there is known by its note (claim.py)
until somebody changes it; what this folder's runs built and could not store is noted below .ingot/made.
Anything else is somebody's own.
"""

import json
import os
import sys
import time
from pathlib import Path

from ingot.base import claim, digest, memo
from ingot.store.records import LAYOUT_FILE, Store

MADE = memo.BESIDE.parent / "made"


def note(path: str, name: str) -> None:
    """Remember that a run of ours put `name` at `path`."""
    MADE.mkdir(parents=True, exist_ok=True)
    _note(path).write_text(name)


def _note(path: str) -> Path:
    return MADE / digest.of_json(path)[:32]


def keep(store: Store, path: str) -> None:
    """Move what is at `path` aside if it is somebody's own."""
    if not os.path.lexists(path) or _ours(store, Path(path)):
        return
    aside = f"{path}.yours-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}"
    Path(path).rename(aside)
    print(
        f"{path}: held what is on no record, expected an artifact or nothing; moved to {aside}",
        file=sys.stderr,
    )


def drop_record(store: Store, record: Path, name: str) -> None:
    """Remove a record of ours that says "passed" of other bytes than `name`, which stand beside it now."""
    if record.is_symlink() and record.resolve().parent == store.blobs.resolve():
        try:
            of = f"sha256:{json.loads(record.read_bytes())['sha256']}"
        except (OSError, ValueError, TypeError, KeyError):
            return
        if of != name:
            record.unlink()
            said = "was of the file that stood there before, so it is removed"
            print(f"{record}: {said}; snakemake {record}", file=sys.stderr)


def _ours(store: Store, path: Path) -> bool:
    if path.is_symlink():
        blob = path.resolve()
        place = blob.parent
        # of another store, such as before INGOT_STORE was changed: that has the bytes still; or moved
        other = place.parts[-2:] == store.blobs.parts[-2:] and (
            (place.parents[1] / LAYOUT_FILE).is_file() or (store.blobs / blob.name).exists()
        )
        return other or place == store.blobs.resolve()
    if claim.untouched(path):
        return True  # a step put it there, whose run was lost before it could be recorded
    if path.is_dir():
        found, entries = digest.tree(path)
        names = [entry["digest"] for entry in entries if "digest" in entry]
    else:
        found = digest.of(path)
        names = [found]
    if _note(str(path)).exists() and _note(str(path)).read_text() == found:
        return True
    return all(store.blob(name).exists() for name in names)
