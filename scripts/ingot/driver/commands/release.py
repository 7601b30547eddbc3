"""Build, verify and publish a whole release: `ingot release demo@1.0 --to oci://host/repository`.

Its cells are what the matrix names, by default each format that somebody serves at each tensor parallel
size.  What is on record is not built again, what the registry has is not sent.  Each cell is published at
VERSION-NAME, and all of them as one index at VERSION, with a table of their numbers, signed where there is
a key.  `ingot diff` compares two.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.cache.remote import settings
from ingot.driver.catalogue import schema
from ingot.driver.commands.publish import add_image
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.release import matrix
from ingot.registry import reference
from ingot.store.records import Store


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("release", help="MODEL@VERSION")
    parser.add_argument("--to", required=True, help="oci://host/repository")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="which cells; YAML")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="sign by this key (default: INGOT_SIGNING_KEY)"
    )
    add_image(parser)
    parser.add_argument("--dry-run", "-n", action="store_true", help="only list the cells")
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    from ingot.driver.cache.dry_run import build
    from ingot.driver.catalogue.formats.rows import RECORD
    from ingot.driver.release import document, released  # no other command needs urllib3
    from ingot.driver.release.on_record import OnRecord
    from ingot.registry.connection import Connection
    from ingot.registry.trusted import signing_key

    model, _, version = options.release.partition("@")
    place = reference.parse(f"{options.to}:{version}")
    if not version or place.digest:
        raise Refused(f"{options.release}: expected MODEL@VERSION, such as demo@1.0")
    key = signing_key(options.key)
    catalogue = schema.load(root, options.configfile)
    targets = matrix.cells(model, catalogue, matrix.read(options.matrix))
    records = [target + RECORD for target in targets]
    if options.dry_run:
        print("\n".join(targets))
        return
    build(root, [*targets, *records], options.configfile, Path(), "--keep-going")
    found, started = (
        OnRecord(root, Store(), [*targets, *records], options.configfile),
        time.monotonic(),
    )
    said, indexes, sent = document.of(found, model, version, targets), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            artifact, origin = found.artifact(target, Path(folder)), found.origin(target, key)
            tag = f"{version}-{artifact.title}"
            connection = Connection(replace(place, tag=tag), "pull,push", options.plain_http)
            print(f"publishing {target}", file=sys.stderr, flush=True)
            indexes[artifact.title], more = released.cell(
                connection,
                artifact,
                origin,
                tag,
                options.image,
                settings.repositories(place.host, found.store),
            )
            sent += more
    connection = Connection(place, "pull,push", options.plain_http)
    digest = released.publish(connection, said, indexes, key)
    settings.published_to(place.host, place.repository, found.store)
    print(said.table())
    print(
        f"{place}@{digest}: {len(targets)} cells, {sent / 1e6:.1f} MB sent in "
        f"{time.monotonic() - started:.1f} s{'' if key else ', not signed'}"
    )
