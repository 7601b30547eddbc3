"""Publish a verified artifact to a registry: `ingot publish artifacts/M.gguf --to oci://host/repository:tag`.

    ingot publish artifacts/M.q*.gguf --to hf://organisation/name    several, with a card of them

One index, by digest: the files as a CNCF ModelPack (with --image as an image's layers, too), the
verification record, the action that gave them, a bill of its toolchain's packages, and where all of it
came from, signed where there is a key.  What the registry has is not sent, and what another repository
of it has is mounted.  Refused: what is not on record, or whose verification did not pass or is about
other bytes.
"""

import json
import re
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.atomic import replacing
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.driver.cache.remote import settings
from ingot.driver.commands.targets import add_catalogue
from ingot.registry import reference
from ingot.store.records import Store


def add_image(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--image", action="store_true",
        help="as an image, too, which podman pulls and Kubernetes mounts: every byte is sent twice",
    )  # fmt: skip


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="+", help="such as artifacts/M.gguf; several of them for the hub alone"
    )
    parser.add_argument("--to", required=True, help="oci://host/repository:tag, or hf://org/name")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="sign by this key (default: INGOT_SIGNING_KEY)"
    )
    parser.add_argument(
        "--parts", default="", metavar="RULE",
        help="cut large files: tensors (a fine-tune sends what it changed), or a number of bytes",
    )  # fmt: skip
    add_image(parser)
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write where it is, and its digest, to this"
    )
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    # no other command needs urllib3 and cryptography
    from ingot.driver.catalogue.formats.rows import RECORD
    from ingot.driver.release import older, to_hub
    from ingot.driver.release.on_record import OnRecord
    from ingot.registry import parts
    from ingot.registry.connection import Connection
    from ingot.registry.published import publish
    from ingot.registry.trusted import signing_key

    if options.to.startswith(to_hub.SCHEME):
        to_hub.parse(options.to)
        key, names = signing_key(options.key), [one.rstrip("/") for one in options.target]
        asked = [name + end for name in names for end in ("", RECORD)]
        found = OnRecord(root, Store(), asked, options.configfile)
        older.told(root, found.store, found.catalogue, names)
        with tempfile.TemporaryDirectory() as folder:
            to_hub.stop_on_mixed([found.artifact(target, Path(folder)) for target in names])
        for target in names:
            said = to_hub.publish(found, target, key, options.to)
            print(f"{to_hub.SCHEME}{said}", flush=True)
        return
    if len(options.target) > 1:
        raise Refused(
            f"{options.to}: one tag, expected one target; `ingot release` publishes several to a registry"
        )
    place = reference.parse(options.to)
    if not place.tag or place.digest:
        raise Refused(
            f"{place}: expected a tag, such as {reference.SCHEME}host/repository:1.0; add it"
        )
    if options.parts not in ("", parts.TENSORS) and not re.fullmatch(
        "[1-9][0-9]{6,}", options.parts
    ):
        raise Refused(f"--parts: {options.parts}, expected {parts.TENSORS}, or bytes from 1000000")
    key, target = signing_key(options.key), options.target[0].rstrip("/")
    rule = parts.rule_for(place.host, options.parts)
    store = Store()
    found = OnRecord(root, store, [target, target + RECORD], options.configfile)
    older.told(root, store, found.catalogue, [target])
    with tempfile.TemporaryDirectory() as folder:
        artifact, origin = found.artifact(target, Path(folder)), found.origin(target, key)
        connection = Connection(place, "pull,push", options.plain_http)
        progress = Progress(
            f"pushing {artifact.title}", (1 + options.image) * artifact.output["size"]
        )
        started = time.monotonic()
        digest, sent = publish(
            connection, artifact, place.tag, progress.add, origin, rule, options.image,
            settings.repositories(place.host, store),
        )  # fmt: skip
    settings.published_to(place.host, place.repository, store)
    if options.record:
        said = {"reference": str(place.at(digest)), "tag": place.tag, "sha256": artifact.digest}
        with replacing(options.record) as partial:
            partial.write_text(json.dumps(said, indent=2) + "\n")
    seconds = time.monotonic() - started
    print(
        f"{place}@{digest}: {sent / 1e6:.1f} MB sent in {seconds:.1f} s, {connection.requests} requests"
        f"{'' if key else ', not signed'}"
    )
