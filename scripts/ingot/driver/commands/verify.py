"""Check what was published, without its bytes: `ingot verify oci://host/repository:tag --key cosign.pub`.

The signature covers each manifest of the index, the manifests name every file by digest, the provenance
says what it was made from, and the verification record is about these files and passed.  `ingot pull
--key` checks the same, and then each byte.  Of a release every cell is checked.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.commands.pull import add_reference
from ingot.driver.show.quality import few
from ingot.registry import reference


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("reference", help="oci://host/repository:tag, or @sha256:<hex>")
    parser.add_argument("--json", action="store_true", help="machine-readable: the whole statement")
    add_reference(parser)


def run(root: Path, options: Namespace) -> None:
    from ingot.driver.release import released  # no other command needs urllib3
    from ingot.registry import listed, trusted
    from ingot.registry.connection import Connection

    if Path(options.reference).exists():
        raise Refused(
            f"{options.reference}: a file here, expected what is published, {reference.EXPECTED}; `ingot "
            f"show {options.reference}` says what its verification found"
        )
    place, keys = reference.parse(options.reference), trusted.keys(options.key)
    if not keys:
        raise Refused("--key: missing, expected a public key that you trust; name it")
    found = listed.read(Connection(place, "pull", options.plain_http))
    cells = released.cells(found)
    if cells:
        trusted.signed(found, keys, released.KIND)
    checked = [trusted.check(one, keys) for one in map(found.at, cells)] or [
        trusted.check(found, keys)
    ]
    if options.json:
        statements = [good.statement for good in checked]
        print(json.dumps(statements if cells else statements[0]))
        return
    print(f"{found.reference}{f': a release of {len(cells)} cells' if cells else ''}")
    for good in checked:
        sources = good.build.get("resolvedDependencies", [])
        print(f"artifact       {good.title}")
        print(f"signed by      {', '.join(name[:16] for name in good.signers)}")
        print(f"made from      {len(sources)} files, each by digest")
        print(f"verified       against {good.record['reference']}: {good.record['result']}")
        if numbers := few(good.record["checks"]):
            print(f"numbers        {', '.join(numbers)}")
