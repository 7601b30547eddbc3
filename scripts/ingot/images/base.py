"""What an image stands on: a root file system as a tar, an OCI layout, or a registry's image."""

import gzip
import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.refused import Refused
from ingot.registry import reference, transfer
from ingot.registry.reference import SCHEME
from ingot.registry.transfer import Content

TAR = "application/vnd.oci.image.layer.v1.tar"
INTERPRETERS = ("usr/bin/python3.11", "usr/local/bin/python3.11")
PLATFORM = ("linux", "amd64")
BLOCK = 1 << 20


@dataclass(frozen=True)
class Base:
    layers: list[tuple[dict[str, Any], Content]]  # descriptor, and where its bytes are
    diff_ids: list[str]
    config: dict[str, Any]  # of its `config`: environment, user
    python: str  # of it, 3.11


def read(source: str, folder: Path, plain: bool = False) -> Base:
    """`folder` takes what is fetched.  Refused: a tag, and what has no Python 3.11."""
    if source.startswith(SCHEME):
        return _of_registry(source, folder, plain)
    path = Path(source)
    if (path / "index.json").is_file():
        return _of_layout(path)
    if not path.is_file():
        raise Refused(
            f"{source}: missing, expected a tar of a root file system, an OCI layout, or "
            f"{SCHEME}host/repository@sha256:<hex>; see docs/serving.md"
        )
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            found.update(data)
    content = Content(f"sha256:{found.hexdigest()}", path.stat().st_size, path)
    descriptor = {"mediaType": TAR, "digest": content.digest, "size": content.size}
    return Base([(descriptor, content)], [content.digest], {}, python_of([content], source))


def _of_layout(path: Path) -> Base:
    def blob(digest: str) -> Path:
        return path / "blobs/sha256" / digest.removeprefix("sha256:")

    def load(descriptor: dict) -> dict:
        data = blob(descriptor["digest"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != descriptor["digest"].removeprefix("sha256:"):
            raise Refused(f"{path}: other bytes than {descriptor['digest']}; copy it again")
        return json.loads(data)

    manifest = _chosen(json.loads((path / "index.json").read_bytes()), load, str(path))
    layers = [
        (one, Content(one["digest"], one["size"], blob(one["digest"])))
        for one in manifest["layers"]
    ]
    return _whole(layers, load(manifest["config"]), str(path))


def _of_registry(source: str, folder: Path, plain: bool) -> Base:
    from ingot.registry.connection import Connection

    place = reference.parse(source)
    if not place.digest:
        raise Refused(
            f"{source}: expected a digest, name@sha256:<hex>; a tag may be another image tomorrow"
        )
    connection = Connection(place, "pull", plain)
    first, _ = transfer.get_manifest(connection, place.digest)
    manifest = _chosen(
        first, lambda one: transfer.get_manifest(connection, one["digest"])[0], source
    )
    layers = []
    for one in manifest["layers"]:
        target = folder / one["digest"].removeprefix("sha256:")
        if not target.exists():
            partial = target.with_suffix(".partial")
            transfer.pull(connection, one["digest"], one["size"], partial)
            partial.replace(target)
        layers.append((one, Content(one["digest"], one["size"], target)))
    config = json.loads(transfer.get(connection, manifest["config"]))
    return _whole(layers, config, source)


def _chosen(found: dict, load, source: str) -> dict:
    """The manifest for this platform."""
    for _ in range(3):
        if "manifests" not in found:
            return found
        for one in found["manifests"]:
            own = one.get("platform", {})
            if (own.get("os", PLATFORM[0]), own.get("architecture", PLATFORM[1])) == PLATFORM:
                found = load(one)
                break
        else:
            break
    raise Refused(f"{source}: has no image for {'/'.join(PLATFORM)}, expected one; name another")


def _whole(layers: list[tuple[dict, Content]], config: dict, source: str) -> Base:
    python = python_of([content for _, content in layers], source)
    return Base(layers, config["rootfs"]["diff_ids"], config.get("config") or {}, python)


def python_of(layers: list[Content], source: str) -> str:
    """Which of INTERPRETERS its layers hold."""
    names: set[str] = set()
    for layer in layers:
        with layer.source.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        try:
            opened = gzip.open if packed else open
            with opened(layer.source, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
                names |= {member.name.removeprefix("./") for member in tar}
        except (tarfile.TarError, OSError, EOFError):
            raise Refused(
                f"{source}: {layer.digest} is no tar, expected one; build it again"
            ) from None
    for name in INTERPRETERS:
        if name in names:
            return name
    raise Refused(f"{source}: has no {INTERPRETERS[0]}, expected Python 3.11; name another base")
