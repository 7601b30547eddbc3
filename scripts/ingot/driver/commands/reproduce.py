"""Build what was published once more, and say whether it is the same: `ingot reproduce oci://host/repository:tag`.

From its provenance: the sources by digest, the toolchains by their locks, in a folder and a store of its
own.  The verdict is the same bytes, or the first step whose bytes differ; exit status 1 then.  With --sign
your signature is put beside the publisher's.  Of a release each cell is built.
"""

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from pathlib import Path

from ingot.driver.commands.pull import add_reference
from ingot.refused import Refused
from ingot.registry import reference


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("reference", help="oci://host/repository:tag, or @sha256:<hex>")
    parser.add_argument("--folder", type=Path, help="where to build (default: a temporary one)")
    parser.add_argument(
        "--source", type=Path, metavar="FOLDER", help="the checkpoint, where it is of no hub"
    )
    parser.add_argument(
        "--sign", type=Path, metavar="FILE", help="sign by this key what is the same"
    )
    add_reference(parser)


def run(root: Path, options: Namespace) -> int:
    from ingot.driver.release import released, reproduced  # no other command needs urllib3
    from ingot.publishing import listed, published, trusted
    from ingot.registry.connection import Connection
    from ingot.trust import envelope

    keys, place = trusted.keys(options.key), reference.parse(options.reference)
    signs = envelope.private_key(options.sign) if options.sign else None
    if signs and not place.tag:
        raise Refused(f"{place}: has no tag, expected one to put a signature at; name it")

    access = "pull,push" if signs else "pull"
    found = listed.read(Connection(place, access, options.plain_http))
    parts = [found.at(one) for one in released.cells(found)] or [found]
    recipes = []
    for one in parts:
        said = trusted.check(one, keys).statement if keys else trusted.unchecked(one)
        recipes.append(reproduced.recipe(one.reference, said))
        reproduced.same_tools(root, recipes[-1])
        if why := reproduced.expected(recipes[-1]):
            print(f"{recipes[-1].target}: may differ: {why}", file=sys.stderr)
    if not keys:
        print("its provenance is not held against a key; name one by --key", file=sys.stderr)
    temporary = tempfile.TemporaryDirectory() if options.folder is None else nullcontext()
    with temporary as name:
        folder = options.folder or Path(name)
        reproduced.build(root, recipes, folder, options.source)
        verdicts = [reproduced.verdict(root, one, folder) for one in recipes]
    for one in verdicts:
        if one.differs:
            print(f"{one.target}: differs, first in {one.differs[0]}{one.why and f' ({one.why})'}")
        else:
            print(f"{one.target}: the same, {len(one.same)} files of every step")
    good = [one for one in verdicts if not one.differs]
    print(f"{len(good)} of {len(verdicts)} the same bytes")
    if signs and len(good) == len(verdicts):
        print(f"signed: {published.sign_too(found, signs, place.tag)}")
    return len(good) < len(verdicts)
