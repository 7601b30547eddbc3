"""Read every blob from the disk, set aside what is damaged, and drop what rests on it."""

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

from ingot.base import digest, memo
from ingot.base.atomic import alive, remove
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.store.records import Store

MOST_UNREAD = 3  # blobs that cannot be read, beyond which it is no fault of single sectors
LEFT_BEHIND = 3600  # seconds after which a temporary name that nobody writes is removed


def fsck(store: Store) -> dict[str, Any]:
    """Read every blob; set aside what is damaged, drop what was made of it, and say what will be built
    again."""
    blobs = [path for path in store.blobs.glob("[0-9a-f]*") if digest.NAME.fullmatch(_name(path))]
    progress = Progress("fsck", sum(path.stat().st_size for path in blobs if path.exists()))
    bad, damaged, unread, failed, lost, rests, left = [], [], [], {}, [], [], 0
    for blob in blobs:
        state, name = memo.stamp_of(blob), _name(blob)
        try:
            found = _read(blob, failed) if state else "no regular file"
        except FileNotFoundError:
            continue  # gc took it meanwhile
        except PermissionError:
            unread.append(name)
            continue
        progress.add(blob.stat().st_size if blob.exists() else 0)
        if found == blob.name:
            if memo.recall(state) is None:
                memo.remember(state, name)
        else:  # at once: what was found is not lost where somebody stops it
            bad.append(name)
            lost += [record.title for record in store.records() if name in record.files]
            rests += store.quarantine(name)
    for pointer in store.root.glob("actions/*/*"):
        if pointer.name.startswith(".") or store.read(pointer) is not None:
            continue
        name = str(pointer.relative_to(store.root))
        if pointer.is_file() and not os.access(pointer, os.R_OK):
            unread.append(name)  # another user's: nobody can say that it is damaged
        else:
            damaged.append(name)
            remove(pointer)
    for place in (*store.root.rglob("*.partial"), *store.blobs.glob(".*.coming")):
        with contextlib.suppress(OSError):
            if time.time() - place.lstat().st_mtime > LEFT_BEHIND and not alive(place):
                remove(place)
                left += 1
    store.reindex()
    return {
        "store": str(store.root), "blobs": len(blobs), "damaged_blobs": bad,
        "damaged_records": damaged, "not_readable": unread, "leftovers_removed": left,
        "read_errors": failed, "built_again": sorted({*lost, *(record.title for record in rests)}),
        "records_dropped": [f"{record.rule} {record.key}" for record in rests],
    }  # fmt: skip


def _read(blob: Path, failed: dict[str, str]) -> str:
    """The digest of a blob on the disk; empty, and noted in `failed`, of one that the disk cannot read.

    Refused: an error that says nothing of the disk, such as of a file server that is not there.
    """
    for last in (False, True):
        try:
            return digest.read_from_disk(blob)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if error.errno != errno.EIO or len(failed) >= MOST_UNREAD:
                raise Refused(
                    f"{blob}: {error.strerror}, expected a file system that answers; try again when it does"
                ) from None
            if last:
                failed[_name(blob)] = error.strerror
    return ""


def _name(blob: Path) -> str:
    return f"sha256:{blob.name}"
