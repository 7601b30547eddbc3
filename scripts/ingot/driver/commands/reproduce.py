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

from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.commands.pull import add_reference
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
    parser.add_argument(
        "--unsigned", action="store_true", help="build by a provenance that no trusted key signed"
    )
    add_reference(parser)


def run(root: Path, options: Namespace) -> int:
    from ingot.driver.release import released, reproduced  # no other command needs urllib3
    from ingot.registry import envelope, listed, modelpack, provenance, published, trusted
    from ingot.registry.connection import Connection

    keys, place = trusted.keys(options.key), reference.parse(options.reference)
    signs = envelope.private_key(options.sign) if options.sign else None
    if signs and (not place.tag or place.digest):
        raise Refused(f"{place}: expected a tag alone, to put a signature at; name it")

    if not keys and not options.unsigned:
        raise Refused(
            f"{place}: no key to check its provenance with, expected --key: it decides what runs here; "
            "name one, or say --unsigned"
        )
    access = "pull,push" if signs else "pull"
    found = listed.read(Connection(place, access, options.plain_http))
    kind = released.KIND if (cells := released.cells(found)) else provenance.KIND
    said = trusted.signed(found, keys, kind)[0] if keys else trusted.unchecked(found, kind)
    catalogue = schema.load(root)
    recipes, published_files = [], []
    for one in [found.at(digest) for digest in cells] or [found]:
        its = trusted.check(one, keys).statement if keys else trusted.unchecked(one)
        recipes.append(reproduced.recipe(one.reference, its, one.title(), catalogue))
        layers = one.manifest(one.one(modelpack.MODEL))["layers"]
        published_files.append(modelpack.named(layers))
        reproduced.same_tools(root, recipes[-1])
        if why := reproduced.expected(recipes[-1]):
            print(f"{recipes[-1].target}: may differ: {why}", file=sys.stderr)
    temporary = tempfile.TemporaryDirectory() if options.folder is None else nullcontext()
    with temporary as name:
        folder = options.folder or Path(name)
        reproduced.build(root, recipes, folder, options.source)
        verdicts = [
            reproduced.verdict(root, one, files, folder)
            for one, files in zip(recipes, published_files, strict=True)
        ]
    for one in verdicts:
        if one.differs:
            print(f"{one.target}: differs, first in {one.differs[0]}{one.why and f' ({one.why})'}")
        else:
            print(f"{one.target}: the same, {len(one.same)} files of every step")
    good = [one for one in verdicts if not one.differs]
    print(f"{len(good)} of {len(verdicts)} the same bytes")
    if signs and len(good) == len(verdicts):
        print(f"signed: {published.sign_too(found, said, signs, place.tag)}")
    return len(good) < len(verdicts)
