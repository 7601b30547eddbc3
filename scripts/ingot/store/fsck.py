"""Read every blob, set aside what is damaged, and say what will be built again."""

import contextlib
import time
from pathlib import Path
from typing import Any

from ingot.files import digest, memo
from ingot.files.progress import Progress
from ingot.store.records import Store

LEFT_BEHIND = 3600  # seconds after which a temporary name that nobody writes is removed


def fsck(store: Store) -> dict[str, Any]:
    """Read every blob; set aside what is damaged, and say what will be built again."""
    blobs = [path for path in store.root.glob("blobs/sha256/*") if not path.name.startswith(".")]
    progress = Progress("fsck", sum(path.stat().st_size for path in blobs))
    bad, damaged, left = [], [], 0
    for blob in blobs:
        state = memo.stamp_of(blob)
        try:
            found = digest.read(blob)
        except FileNotFoundError:
            continue  # gc took it meanwhile
        progress.add(blob.stat().st_size if blob.exists() else 0)
        if found == blob.name:
            if memo.recall(state) is None:
                memo.remember(state, f"sha256:{found}")
        else:
            bad.append(f"sha256:{blob.name}")
            store.quarantine(bad[-1])
    for pointer in store.root.glob("actions/*/*"):
        if not pointer.name.startswith(".") and store.read(pointer) is None:
            damaged.append(str(pointer.relative_to(store.root)))
            pointer.unlink(missing_ok=True)
    for place in store.root.rglob("*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - place.lstat().st_mtime > LEFT_BEHIND and not _alive(place):
                place.unlink()
                left += 1
    again = [record.title for record in store.records() if set(record.files) & set(bad)]
    store.reindex()
    return {
        "store": str(store.root), "blobs": len(blobs), "damaged_blobs": bad,
        "damaged_records": damaged, "leftovers_removed": left, "built_again": sorted(set(again)),
    }  # fmt: skip


def _alive(place: Path) -> bool:
    pids = [part for part in place.name.split(".") if part.isdigit()]
    return any(Path("/proc", pid).exists() for pid in pids)
