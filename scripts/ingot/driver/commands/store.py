"""Show the size of the store, check it, name what is in it, or delete what is unused.

du     bytes by model and format
fsck   read every blob, set aside what is damaged; exit status 1 when something was
tags   of what each TARGET is on record as: a name for skopeo, its digest, its title
dedupe let files of one size share their equal blocks on the disk: a fine-tune and its base, on XFS or btrfs
gc     delete what has not been used for 30 days, never what a working folder or a running build needs
"""

import json
import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.cache.remote.settings import NAME as REMOTE
from ingot.driver.catalogue import schema, targets
from ingot.driver.commands.targets import add_catalogue
from ingot.store import way
from ingot.store.dedupe import dedupe
from ingot.store.fsck import fsck
from ingot.store.gc import collect
from ingot.store.records import Store
from ingot.store.usage import usage

WHAT = ("du", "fsck", "tags", "dedupe", "gc")


def add_options(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.add_argument(
        "what",
        choices=WHAT,
        help="look, check, name, share, or drop",
    )
    parser.add_argument("target", nargs="*", help="tags: of these; gc: keep what these need")
    parser.add_argument(
        "--days",
        type=float,
        default=30,
        help="gc: keep what was used in the last DAYS days (default: 30)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="gc: only print what would be deleted"
    )
    parser.add_argument(
        "--forget",
        metavar="FOLDER",
        action="append",
        default=[],
        help="gc: keep nothing more for this working folder, which cannot be seen and is gone",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable: the result as JSON")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    store, what = Store(), options.what
    if not store.root.is_dir():
        raise Refused(
            f"{store.root}: no store yet, expected a folder; build something, or set INGOT_STORE"
        )
    if what == "tags":
        found, show = tags_of(store, checked(root, options)), show_tags
    elif what == "du":
        found, show = usage(store), show_usage
    elif not store.prepare():
        raise Refused(
            f"{store.root}: read-only, expected write access; ask its owner to run `ingot store {what}`"
        )
    elif what == "fsck":
        found, show = fsck(store), show_fsck
    elif what == "dedupe":
        with store.locked("content", shared=True):  # gc waits
            found, show = dedupe(store), show_dedupe
    else:
        keys = keys_of(store, checked(root, options))
        found = collect(store, options.days, keys, options.dry_run, options.forget)
        show = show_gc
    print(json.dumps(found)) if options.json else show(found)
    return int(bool(found.get("damaged_blobs") or found.get("damaged_records")))


def checked(root: Path, options: Namespace) -> list[str]:
    catalogue = schema.load(root, options.configfile) if options.target else {}
    for target in options.target:
        targets.check(target, catalogue)
    return [target.rstrip("/") for target in options.target]


def keys_of(store: Store, wanted: list[str]) -> dict[str, bool]:
    """The actions that targets rest on, as they were last built: their own with files, those before them as
    records alone."""
    found: dict[str, bool] = {}
    for target in wanted:
        if record := way.last(store, Path(target).name):
            found = (
                {job["key"]: False for job in way.of(store, record)} | found | {record.key: True}
            )
    return found


def tags_of(store: Store, wanted: list[str]) -> dict:
    """The record of each target, as skopeo names it.  Refused: one that does not stand here as recorded."""
    rows, standing = [], way.stand(store, wanted)
    for target in wanted:
        record = standing.get(target)
        if record is None:
            raise Refused(f"{target}: not here as it is on record; snakemake {target}")
        name = f"oci:{store.root}:{record.tag}"
        rows.append(
            {"name": name, "tag": record.tag, "digest": record.digest, "title": record.title}
        )
    return {"tags": rows}


def show_tags(found: dict) -> None:
    for row in found["tags"]:
        print(row["name"], row["digest"], row["title"])


def show_usage(found: dict) -> None:
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


def show_fsck(found: dict) -> None:
    for name in found["damaged_blobs"]:
        why = found["read_errors"].get(name)
        said = f"cannot be read ({why})" if why else "does not hold what its name says"
        print(f"{name}: {said}; set aside in quarantine/")
    for name in found["damaged_records"]:
        print(f"{name}: not a whole record; removed")
    for title in found["built_again"]:
        print(f"{title}: will be built again when it is asked for")
    if found["records_dropped"] and os.environ.get(REMOTE):
        print(
            "The shared cache may hold these records: here they are not taken from it, and a build that "
            "may write there replaces them. Have its owner delete, for those who only read it:"
        )
        for name in found["records_dropped"]:
            print(f"  ac-{name.split()[-1]}  {name.split()[0]}")
    for name in found["not_readable"]:
        print(f"{name}: not readable for you; left alone")
    bad = len(found["damaged_blobs"]) + len(found["damaged_records"])
    blobs = found["blobs"]
    print(f"{found['store']}: {blobs} blob{'s'[: blobs != 1]} read, {bad or 'none'} damaged")


def show_dedupe(found: dict) -> None:
    print(
        f"{found['store']}: {found['files']} files share {found['bytes_shared'] / 1e6:,.1f} MB with others"
    )


def show_gc(found: dict) -> None:
    for folder in found["unseen_folders"]:
        print(f"{folder}: cannot be seen from here; what it asked for is kept (--forget drops it)")
    for title in sorted(set(found["records_dropped"])):
        print(title)
    reasons = ", ".join(f"{count} {why}" for why, count in sorted(found["kept_because"].items()))
    word = "would free" if found["dry_run"] else "freed"
    print(
        f"{found['store']}: {word} {found['bytes_freed'] / 1e6:,.1f} MB: "
        f"{len(found['records_dropped'])} records, {found['blobs_dropped']} blobs; "
        f"{found['records_kept']} records kept{': ' * bool(reasons)}{reasons}"
    )
