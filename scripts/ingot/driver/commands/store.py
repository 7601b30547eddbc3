"""`ingot store`: how much lies there, whether it is whole, and what may go."""

import contextlib
import json
import re
import sys
import time
from pathlib import Path

from ingot.files import digest
from ingot.files.progress import Progress
from ingot.store import leases
from ingot.store.blobs import Record, Store

DAY = 86400  # seconds
MEMO_DAYS = 90  # a memo that nobody wrote for so long is dropped; the file is read again once


def du(store: Store) -> dict:
    """Bytes by model and kind, each blob counted once, for the record that was used last."""
    rows: dict[tuple[str, str], dict] = {}
    counted: set[str] = set()
    for record in sorted(store.records(), key=_used, reverse=True):
        model, kind = _model_and_kind(record)
        row = rows.setdefault(
            (model, kind), {"model": model, "kind": kind, "artifacts": 0, "bytes": 0, "days": 1e9}
        )
        row["days"] = min(row["days"], round((time.time() - _used(record)) / DAY, 1))
        row["artifacts"] += 1
        for layer in record.manifest["layers"]:
            if layer["digest"] not in counted and store.blob(layer["digest"]).exists():
                counted.add(layer["digest"])
                row["bytes"] += layer["size"]
    found = sorted(rows.values(), key=lambda row: -row["bytes"])
    total = sum(path.stat().st_size for path in store.root.glob("blobs/sha256/*"))
    aside = sum(path.stat().st_size for path in store.root.glob("quarantine/*"))
    return {"store": str(store.root), "bytes": total, "quarantine_bytes": aside, "rows": found}


def show_du(found: dict) -> None:
    most = max((row["bytes"] for row in found["rows"]), default=0) or 1
    print(f"{'model':24}{'kind':16}{'records':>8}{'MB':>12}{'days idle':>11}")
    for row in found["rows"]:
        bar = "█" * round(24 * row["bytes"] / most)
        size = row["bytes"] / 1e6
        print(
            f"{row['model']:24}{row['kind']:16}{row['artifacts']:>8}{size:>12,.1f}{row['days']:>11} {bar}"
        )
    print(f"\n{found['store']}: {found['bytes'] / 1e6:,.1f} MB in all")
    if found["quarantine_bytes"]:
        print(f"quarantine: {found['quarantine_bytes'] / 1e6:,.1f} MB; look, then delete it")


def fsck(store: Store) -> dict:
    """Read every blob; set aside what is damaged, and say what will be built again."""
    blobs = [path for path in store.root.glob("blobs/sha256/*") if not path.name.startswith(".")]
    progress = Progress("fsck", sum(path.stat().st_size for path in blobs))
    bad, damaged, left = [], [], 0
    for blob in blobs:
        state = digest.stamp_of(blob)
        try:
            found = digest.read(blob)
        except FileNotFoundError:
            continue  # gc took it meanwhile
        progress.add(blob.stat().st_size if blob.exists() else 0)
        if found == blob.name:
            if digest.recall(state) is None:
                digest.remember(state, f"sha256:{found}")
        else:
            bad.append(f"sha256:{blob.name}")
            store.quarantine(bad[-1])
    for pointer in store.root.glob("actions/*/*"):
        if not pointer.name.startswith(".") and store.read(pointer) is None:
            damaged.append(str(pointer.relative_to(store.root)))
            pointer.unlink(missing_ok=True)
    for place in store.root.rglob("*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - place.lstat().st_mtime > 3600 and not _alive(place):
                place.unlink()
                left += 1
    again = [_title(record) for record in store.records() if set(_names(record)) & set(bad)]
    reindex(store)
    return {
        "store": str(store.root), "blobs": len(blobs), "damaged_blobs": bad,
        "damaged_records": damaged, "leftovers_removed": left, "built_again": sorted(set(again)),
    }  # fmt: skip


def show_fsck(found: dict) -> None:
    for name in found["damaged_blobs"]:
        print(f"{name}: does not hold what its name says; set aside in quarantine/")
    for name in found["damaged_records"]:
        print(f"{name}: not a whole record; removed")
    for title in found["built_again"]:
        print(f"{title}: will be built again when it is asked for")
    bad = len(found["damaged_blobs"]) + len(found["damaged_records"])
    print(f"{found['store']}: {found['blobs']} blobs read, {bad or 'none'} damaged")


def reindex(store: Store) -> None:
    """Write index.json from the records whose files are all here."""
    with contextlib.suppress(FileNotFoundError):
        (store.root / "index.json").unlink()
    store.index()


def gc(store: Store, days: float, keys: dict[str, bool], dry_run: bool) -> dict:
    """Drop what nobody used for `days` days, but for what stands somewhere or is being built.

    `keys` are actions to keep: True with their files, False their records alone.
    """
    with store.locked("content"):
        for lease in leases.alive(store):
            keys = {**keys, **dict.fromkeys(lease["keys"], True)}
        here = set(standing(store))
        keep, drop = [], []
        kept_names: set[str] = set()
        for record in store.records():
            young = time.time() - _used(record) < days * DAY
            whole = young or keys.get(record.key) or bool(here & set(_names(record)))
            if whole or record.key in keys:
                keep.append(record)
                kept_names |= set(_names(record)) if whole else set()
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
            reindex(store)
            for blob in blobs:
                blob.unlink(missing_ok=True)
            _drop_memos(store)
    return {
        "store": str(store.root), "dry_run": dry_run, "records_kept": len(keep),
        "records_dropped": [_title(record) for record in drop], "blobs_dropped": len(blobs),
        "bytes_freed": freed,
    }  # fmt: skip


def show_gc(found: dict) -> None:
    for title in sorted(set(found["records_dropped"])):
        print(title)
    word = "would free" if found["dry_run"] else "freed"
    print(
        f"{found['store']}: {word} {found['bytes_freed'] / 1e6:,.1f} MB: "
        f"{len(found['records_dropped'])} records, {found['blobs_dropped']} blobs; "
        f"{found['records_kept']} records kept"
    )


def _drop_memos(store: Store) -> None:
    for place in (*store.root.glob("memo/*/*"), *store.root.glob("tensors/*")):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > MEMO_DAYS * DAY:
                place.unlink()


def standing(store: Store):
    """Blobs that artifacts of this host's working folders point to."""
    blobs = store.blob("").resolve()
    for folder in leases.folders(store):
        for path in folder.glob("artifacts/**/*"):
            if path.is_symlink() and (blob := path.resolve()).parent == blobs:
                yield f"sha256:{blob.name}"


def _alive(place: Path) -> bool:
    pids = [part for part in place.name.split(".") if part.isdigit()]
    return any(Path("/proc", pid).exists() for pid in pids)


def _used(record: Record) -> float:
    try:
        return record.path.stat().st_mtime
    except OSError:
        return 0.0


def _names(record: Record) -> list[str]:
    return [layer["digest"] for layer in record.manifest["layers"]]


def _title(record: Record) -> str:
    return ", ".join(output["title"] for output in record.outputs)


def _model_and_kind(record: Record) -> tuple[str, str]:
    title = record.outputs[0]["title"]
    if record.rule.startswith("fetch"):
        return "(fetched)", title.rpartition(".")[2]
    model, _, kind = re.sub(r"_tp\d+", "", title).partition(".")
    return model, kind or record.rule


def keys_of(root: Path, targets: list[str], catalogue: str | None) -> dict[str, bool]:
    """The actions that `targets` rest on: their own with files, those above with their records."""
    from ingot.driver.cache.differences import ask

    wanted = {target.rstrip("/") for target in targets}
    found = ask(root, targets, catalogue)
    return {job["key"]: bool(wanted & set(job["outputs"])) for job in found if "key" in job}


def run(
    root: Path,
    what: str,
    days: float,
    dry_run: bool,
    as_json: bool,
    targets: list[str],
    catalogue: str | None,
) -> None:
    """One of du, fsck and gc, with its result on stdout; exits with 1 when fsck found damage."""
    store = Store()
    if not store.root.is_dir():
        sys.exit(
            f"{store.root}: no store yet, expected a folder; build something, or set INGOT_STORE"
        )
    if what == "du":
        found, show = du(store), show_du
    elif not store.prepare():
        sys.exit(f"{store.root}: read-only for you, expected to write; ask its owner to {what} it")
    elif what == "fsck":
        found, show = fsck(store), show_fsck
    else:
        keys = keys_of(root, targets, catalogue) if targets else {}
        found, show = gc(store, days, keys, dry_run), show_gc
    print(json.dumps(found)) if as_json else show(found)
    if found.get("damaged_blobs") or found.get("damaged_records"):
        sys.exit(1)
