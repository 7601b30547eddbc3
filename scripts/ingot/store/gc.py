"""Drop what nobody has used for long, except for what a working folder or a running build needs."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ingot.store import leases
from ingot.store.records import DAY, Store

MEMO_DAYS = 90  # a memo that nobody wrote for so long is dropped; the file is read again once


def collect(store: Store, days: float, keys: dict[str, bool], dry_run: bool) -> dict[str, Any]:
    """Drop what nobody used for `days` days, except for what a working folder holds or a build needs.

    `keys` are actions to keep: True with their files, False their records alone.
    """
    with store.locked("content"):
        for lease in leases.alive(store):
            keys = {**keys, **dict.fromkeys(lease["keys"], True)}
        here = set(in_folders(store))
        keep, drop = [], []
        kept_names: set[str] = set()
        for record in store.records():
            young = time.time() - record.used < days * DAY
            whole = young or keys.get(record.key) or bool(here & set(record.files))
            if whole or record.key in keys:
                keep.append(record)
                kept_names |= set(record.files) if whole else set()
                kept_names |= {record.digest, record.manifest["config"]["digest"]}
            else:
                drop.append(record)
        kept_names |= here
        blobs = [
            path
            for path in store.root.glob("blobs/sha256/[0-9a-f]*")
            if f"sha256:{path.name}" not in kept_names
        ]
        freed = sum(path.stat().st_size for path in blobs if path.stat().st_nlink == 1)
        if not dry_run:
            # records first: interrupted here, gc leaves blobs that the next one finds unneeded
            for record in drop:
                record.path.unlink(missing_ok=True)
            store.reindex()
            for blob in blobs:
                blob.unlink(missing_ok=True)
            _drop_memos(store)
    return {
        "store": str(store.root), "dry_run": dry_run, "records_kept": len(keep),
        "records_dropped": [record.title for record in drop], "blobs_dropped": len(blobs),
        "bytes_freed": freed,
    }  # fmt: skip


def _drop_memos(store: Store) -> None:
    for place in (*store.root.glob("memo/*/*"), *store.root.glob("tensors/*")):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > MEMO_DAYS * DAY:
                place.unlink()


def in_folders(store: Store) -> Iterator[str]:
    """Blobs that artifacts of this host's working folders point to."""
    blobs = store.blob("").resolve()
    for folder in leases.folders(store):
        for path in folder.glob("artifacts/**/*"):
            if path.is_symlink() and (blob := path.resolve()).parent == blobs:
                yield f"sha256:{blob.name}"
