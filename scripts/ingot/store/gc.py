"""Drop what nobody has used for long, except for what a working folder or a running build needs."""

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.store import leases
from ingot.store.damage import texts
from ingot.store.records import DAY, Record, Store

MEMO_DAYS = 90  # a memo that nobody wrote for so long is dropped; the file is read again once


def collect(
    store: Store, days: float, keys: dict[str, bool], dry_run: bool, forget: Collection[str] = ()
) -> dict[str, Any]:
    """Drop what nobody used for `days` days, except for what a working folder holds or a build needs.

    `keys` are actions to keep: True with their files, False their records alone.  A record is kept
    while another that is kept was made from what it gave: without it, the other would not be found.
    `forget` are working folders that will not come back.
    """
    with store.locked("content"):
        wanted = {key: "named" for key, files in keys.items() if files}
        for lease in leases.alive(store):
            wanted |= dict.fromkeys(lease["keys"], "for a run")
        notes, gone = list(leases.notes(store)), []
        for folder in forget:
            gone += (found := [note for note in notes if note.folder == folder.rstrip("/")])
            if not found:
                raise Refused(
                    f"{folder}: not among the working folders; `ingot store gc` lists them"
                )
        unseen = [note for note in notes if not note.seen and note not in gone]
        for note in unseen:
            wanted |= dict.fromkeys(note.keys, "for a folder that cannot be seen")
        here = set(in_folders(store))
        standing = [note for note in notes if note.seen]
        records = list(store.records())
        why = {one.path: _why(one, days, wanted, here, standing) for one in records}
        whole = [one for one in records if why[one.path]]
        kept = {one.path for one in _rested_on(store, records, whole, {*keys, *wanted})}
        keep = [record for record in records if record.path in kept]
        drop = [record for record in records if record.path not in kept]
        names = here | {name for record in whole for name in record.files}
        for record in keep:
            names |= {record.digest, record.manifest["config"]["digest"]}
        blobs = [
            path
            for path in store.blobs.glob("[0-9a-f]*")
            if f"sha256:{path.name}" not in names and path.is_file()
        ]
        freed = sum(path.stat().st_size for path in blobs if path.stat().st_nlink == 1)
        if not dry_run:
            for note in gone:
                note.place.unlink(missing_ok=True)
            # records first: interrupted here, gc leaves blobs that the next one finds unneeded
            for record in drop:
                record.path.unlink(missing_ok=True)
            store.reindex()
            for blob in blobs:
                with contextlib.suppress(PermissionError):  # another user's, in a sticky folder
                    blob.unlink(missing_ok=True)
            _drop_memos(store)
            store.drop_recipes()
    return {
        "store": str(store.root), "dry_run": dry_run, "records_kept": len(keep),
        "kept_because": Counter(why[one.path] or _way(one, keys) for one in keep),
        "records_dropped": [record.title for record in drop], "blobs_dropped": len(blobs),
        "bytes_freed": freed, "unseen_folders": sorted(note.folder for note in unseen),
    }  # fmt: skip


def _why(
    record: Record, days: float, wanted: dict[str, str], here: set[str], standing: list[leases.Note]
) -> str:
    """Why the record is kept with its files; empty where it is not, or only as a record."""
    if time.time() - record.used < days * DAY:
        return f"used in the last {days:g} days"
    stands = here & set(record.files) or any(_stands(record, note) for note in standing)
    return wanted.get(record.key) or ("in a working folder" if stands else "")


def _way(record: Record, keys: Collection[str]) -> str:
    """Why a record is kept without its files."""
    return "on the way to what was named" if record.key in keys else "that others were made from"


def _stands(record: Record, note: leases.Note) -> bool:
    """Is a folder that the action gave in that working folder?  It holds no link into the store."""
    places = (Path(note.folder, "artifacts", one["title"]) for one in record.outputs)
    return record.key in note.keys and any(place.is_dir() for place in places)


def _rested_on(
    store: Store, records: list[Record], whole: list[Record], keys: Collection[str]
) -> Iterator[Record]:
    """The records `whole`, those of `keys`, and all from whose outputs these were made."""
    makers: dict[str, list[Record]] = {}
    for record in records:
        for output in record.outputs:
            makers.setdefault(output["digest"], []).append(record)
    todo = [*whole, *(record for record in records if record.key in keys)]
    seen: set[Path] = set()
    while todo:
        record = todo.pop()
        if record.path in seen:
            continue
        seen.add(record.path)
        yield record
        for name in texts(store.config(record).get("fields", {}).get("inputs", {})):
            todo += makers.pop(name, ())


def _drop_memos(store: Store) -> None:
    for place in (*store.root.glob("memo/*/*"), *store.root.glob("tensors/*")):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > MEMO_DAYS * DAY:
                place.unlink()


def in_folders(store: Store) -> Iterator[str]:
    """Blobs that artifacts of the working folders point to, as far as they can be seen."""
    blobs = store.blobs.resolve()
    for folder in (note.folder for note in leases.notes(store) if note.seen):
        for path in Path(folder).glob("artifacts/**/*"):
            if path.is_symlink() and (blob := path.resolve()).parent == blobs:
                yield f"sha256:{blob.name}"
