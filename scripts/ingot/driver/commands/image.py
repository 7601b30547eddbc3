"""Build a runtime's image without a daemon: `ingot image rayserve --base BASE --to FOLDER`.

A toolchain's packages, at the versions of its lock, upon a base with Python 3.11: in a folder (an OCI
layout), or pushed to oci://host/repository:tag.  The same base and lock give the same digest.  A model is
no part of it: it is a volume, or an image of its own (`ingot publish`).
"""

import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.atomic import partial_of
from ingot.base.durable import sync, sync_name
from ingot.base.refused import Refused
from ingot.driver.toolchains import toolchains

TOOLCHAINS = ("rayserve", "vllm", "vllm-cuda")  # whose Python packages are all that they are


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "toolchain", help="rayserve: Ray Serve on CPUs; vllm: vLLM on CPUs, and Ray"
    )
    parser.add_argument(
        "--base", required=True,
        help="a tar of a root file system, an OCI layout, or oci://host/repository@sha256:<hex>",
    )  # fmt: skip
    parser.add_argument("--to", required=True, help="a new folder, or oci://host/repository:tag")
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )


def run(root: Path, options: Namespace) -> None:
    from ingot.base.progress import Progress
    from ingot.registry import reference, transfer
    from ingot.registry.connection import Connection
    from ingot.registry.images import base as base_of
    from ingot.registry.images import image as image_of  # no other command needs urllib3

    remote = options.to.startswith(reference.SCHEME)
    place = reference.parse(options.to) if remote else None
    target = Path(options.to)
    if remote and (not place.tag or place.digest):
        raise Refused(
            f"{place}: expected a tag, such as {reference.SCHEME}host/repository:1.0; add it"
        )
    if not remote and (target.exists() or target.is_symlink()):
        raise Refused(f"{target}: exists, expected nothing there; name another, or move it away")
    beside = None if remote else target.absolute().parent
    if beside and not beside.is_dir():
        raise Refused(f"{beside}: missing, expected a folder; make it")
    stands = reference.parse(options.base) if options.base.startswith(reference.SCHEME) else None
    same = remote and stands and stands.host == place.host
    # named by the process, so that the next one removes what a killed one left
    place_of = target if beside else Path(tempfile.gettempdir(), f"ingot-image-{os.getuid()}")
    with partial_of(place_of) as ours:
        ours.mkdir()
        base = base_of.read(options.base, ours, options.plain_http and bool(same or not remote))
        image = image_of.build(base, toolchains.build(root, options.toolchain), ours)
        size = sum(content.size for content in image.contents)
        if remote:
            connection = Connection(place, "pull,push", options.plain_http)
            progress = Progress(f"pushing {options.toolchain}", size)
            sources = [stands.repository] if same else []
            sent = transfer.push(connection, image.contents, progress.add, sources)
            digest, _ = transfer.put_manifest(connection, image.manifest, place.tag)
            print(f"{place.host}/{place.repository}@{digest}")
            print(f"{size / 1e6:.1f} MB, of which {sent / 1e6:.1f} MB were sent")
            return
        layout = ours / "layout"
        layout.mkdir()
        image_of.write_layout(image, layout, ours)
        for path in layout.rglob("*"):
            sync(path)
        layout.rename(target)
        sync_name(target)
    print(
        f"{target}: {size / 1e6:.1f} MB in {len(image.manifest['layers'])} layers, {image.digest}"
    )
