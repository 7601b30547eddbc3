"""Say of an artifact what one would ask: built from what, with what, at what cost, how verified.

Of a reference, a release's too; or of a file or folder whatever its name, which is found by its digest in
the store.
"""

import contextlib
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.registry import reference
from ingot.store.records import Store


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", help="oci://host/repository:tag, or a file or folder")
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )


def run(root: Path, options: Namespace) -> None:
    from ingot.driver.catalogue import schema
    from ingot.driver.release import (
        older,
        released,
        shown,  # no other command needs urllib3
    )
    from ingot.registry import listed
    from ingot.registry.connection import Connection

    if options.what.startswith(reference.SCHEME):
        connection = Connection(reference.parse(options.what), "pull", options.plain_http)
        index = listed.read(connection)
        if released.cells(index):
            document = released.read(connection, []).document
            print(document.text().decode() if options.json else document.table())
            return
        found = shown.of_reference(index)
    elif not Path(options.what).exists():
        raise Refused(f"{options.what}: missing, expected a file, a folder or oci://...; check it")
    else:
        found = shown.of_file(Store(), Path(options.what))
        with contextlib.suppress(Refused):  # of a catalogue, which is not asked for
            older.told(root, Store(), schema.load(root), [options.what.rstrip("/")])
    print(json.dumps(found) if options.json else "\n".join(shown.lines(found)))
