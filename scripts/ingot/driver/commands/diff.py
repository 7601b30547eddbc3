"""What changed from one release to another: `ingot diff oci://host/repository:1.0 oci://host/repository:1.1`.

Of each cell that is not the same: which fields of which actions changed, and what that did to its numbers.
Without a second, it is this working folder: what a release of it would change, before anything is built.
Exit status 1 when a cell changed.
"""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.commands.pull import add_reference
from ingot.driver.commands.targets import add_catalogue
from ingot.registry import reference

HERE = "."


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("old", help="oci://host/repository:VERSION")
    parser.add_argument(
        "new", nargs="?", default=HERE, help="another (default: this working folder)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable: the changes as JSON")
    add_reference(parser)
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    from ingot.driver.release import changes, document, released  # no other command needs urllib3
    from ingot.driver.release.on_record import OnRecord
    from ingot.registry import trusted
    from ingot.registry.connection import Connection
    from ingot.store.records import Store

    keys = trusted.keys(options.key)

    def read(name: str) -> document.Document:
        _stop_on_file(name)
        connection = Connection(reference.parse(name), "pull", options.plain_http)
        return released.read(connection, keys).document

    old = read(options.old)
    if options.new == HERE:
        targets = [cell["target"] for cell in old.cells.values()]
        found = OnRecord(root, Store(), targets, options.configfile, built=False, planned=True)
        new = document.of(found, old.model, "here", targets)
    else:
        new = read(options.new)
    listed = changes.changes(old, new)
    if options.json:
        print(json.dumps([asdict(one) for one in listed]))
        return bool(listed)
    for one in listed:
        print(f"{one.title}: {one.word}")
        for line in (*one.why, *one.numbers):
            print(f"    {line}")
    print(f"{old.name} → {new.name}: {len(listed)} of {len({*old.cells, *new.cells})} cells differ")
    return bool(listed)


def _stop_on_file(name: str) -> None:
    """Releases are compared here; files by `ingot report`."""
    there = Path(name).exists() or not reference.lacks_scheme(name)
    if not name.startswith(reference.SCHEME) and there:
        raise Refused(
            f"{name}: no release, expected oci://host/repository:VERSION; `ingot report A --against B` "
            "compares two artifacts here"
        )
