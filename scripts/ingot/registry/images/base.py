"""What an image stands on: a root file system as a tar, an OCI layout, or a registry's image."""

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ingot.base.refused import Refused
from ingot.registry import reference, transfer
from ingot.registry.reference import DIGEST, SCHEME
from ingot.registry.transfer import Content

TAR = "application/vnd.oci.image.layer.v1.tar"
INTERPRETERS = ("usr/bin/python3.11", "usr/local/bin/python3.11")
PLATFORM = {"os": "linux", "architecture": "amd64"}
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how such files begin
GONE, ALL_GONE = ".wh.", ".wh..wh..opq"  # a layer's words for what it removes
DEPTH = 3  # of indexes in indexes
BLOCK = 1 << 20


@dataclass(frozen=True)
class Base:
    layers: list[tuple[dict[str, Any], Content]]  # descriptor, and where its bytes are
    diff_ids: list[str]
    config: dict[str, Any]  # of its `config`: environment, user
    python: str  # of it, 3.11


def read(source: str, folder: Path, plain: bool = False) -> Base:
    """`folder` takes what is fetched.  Refused: a tag, another platform, and what has no Python 3.11."""
    try:
        if source.startswith(SCHEME):
            return _of_registry(source, folder, plain)
        path = Path(source)
        if (path / "index.json").is_file():
            return _of_layout(path)
        return _of_tar(path)
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise Refused(
            f"{source}: no image ({type(error).__name__}: {error}), expected a tar of a root file system, "
            f"an OCI layout, or {SCHEME}host/repository@sha256:<hex>; see docs/serving.md"
        ) from None


def _of_tar(path: Path) -> Base:
    with path.open("rb") as file:
        if file.read(2) == GZIP:
            raise Refused(f"{path}: packed by gzip, expected a plain tar; unpack it")
    content = Content(_digest(path), path.stat().st_size, path)
    descriptor = {"mediaType": TAR, "digest": content.digest, "size": content.size}
    python = python_of([content], str(path))
    return Base([(descriptor, content)], [content.digest], {}, python)


def _of_layout(path: Path) -> Base:
    def blob(descriptor: dict) -> Content:
        digest = checked(descriptor, str(path))["digest"]
        place = path / "blobs/sha256" / digest.removeprefix("sha256:")
        if _digest(place) != digest:
            raise Refused(f"{place}: other bytes than its name says; copy the layout again")
        return Content(digest, place.stat().st_size, place)

    def load(descriptor: dict) -> dict:
        return json.loads(blob(descriptor).source.read_bytes())

    manifest = chosen(json.loads((path / "index.json").read_bytes()), load, str(path))
    layers = [(one, blob(one)) for one in manifest["layers"]]
    return _whole(layers, load(manifest["config"]), str(path))


def _of_registry(source: str, folder: Path, plain: bool) -> Base:
    from ingot.registry.connection import Connection

    place = reference.parse(source)
    if not place.digest:
        raise Refused(
            f"{source}: expected a digest, name@sha256:<hex>; a tag may be another image tomorrow"
        )
    connection = Connection(place, "pull", plain)

    def load(descriptor: dict) -> dict:
        return transfer.get_manifest(connection, checked(descriptor, source)["digest"])[0]

    manifest = chosen(load({"digest": place.digest, "size": 0}), load, source)
    layers = []
    for one in manifest["layers"]:
        digest = checked(one, source)["digest"]
        target = folder / digest.removeprefix("sha256:")
        if not target.exists():
            partial = target.with_suffix(".partial")
            transfer.pull(connection, digest, one["size"], partial)
            partial.replace(target)
        layers.append((one, Content(digest, one["size"], target)))
    config = json.loads(transfer.get(connection, checked(manifest["config"], source)))
    return _whole(layers, config, source)


def checked(descriptor: dict, source: str) -> dict:
    """A descriptor whose digest may become a path."""
    digest, size = descriptor["digest"], descriptor["size"]
    if not (
        isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and size >= 0
    ):
        raise Refused(f"{source}: {digest!r:.80} is no digest, expected sha256:<hex>; not taken")
    return descriptor


def chosen(found: dict, load: Callable[[dict], dict], source: str) -> dict:
    """The manifest for this platform."""
    for _ in range(DEPTH):
        if "manifests" not in found:
            return found
        each = [(one.get("platform"), one) for one in found["manifests"]]
        ours = [one for own, one in each if own and PLATFORM.items() <= own.items()]
        ours = ours or [one for own, one in each if not own]
        if len(ours) != 1:
            break
        found = load(ours[0])
    raise Refused(
        f"{source}: has no image, or several, for {'/'.join(PLATFORM.values())}, expected one; name it by "
        "its own digest"
    )


def _whole(layers: list[tuple[dict, Content]], config: dict, source: str) -> Base:
    if not PLATFORM.items() <= config.items():
        own = f"{config.get('os')}/{config.get('architecture')}"
        raise Refused(
            f"{source}: is for {own}, expected {'/'.join(PLATFORM.values())}; name another"
        )
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers):
        raise Refused(f"{source}: {len(diff_ids)} diff_ids of {len(layers)} layers; not taken")
    python = python_of([content for _, content in layers], source)
    return Base(layers, diff_ids, config.get("config") or {}, python)


def python_of(layers: list[Content], source: str) -> str:
    """Which of INTERPRETERS is a file once all layers are unpacked."""
    names: set[str] = set()
    marks = ()
    for layer in layers:
        with layer.source.open("rb") as file:
            head = file.read(4)
        if head == ZSTD:
            raise Refused(f"{source}: {layer.digest} is packed by zstd, expected gzip or nothing")
        try:
            opened = gzip.open if head.startswith(GZIP) else open
            with opened(layer.source, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
                found = [(one.name.removeprefix("./").lstrip("/"), one) for one in tar]
        except (tarfile.TarError, OSError, EOFError, zlib.error):
            raise Refused(f"{source}: {layer.digest} is no tar, expected one") from None
        names = {name for name in names if not _removed(name, {other for other, _ in found})}
        names |= {
            name for name, one in found if name in INTERPRETERS and (one.isreg() or one.islnk())
        }
        marks = [name for name, _ in found if name in ("oci-layout", "manifest.json")]
    for name in INTERPRETERS:
        if name in names:
            return name
    if marks:
        raise Refused(f"{source}: a tar of an image, expected its folder; unpack it first")
    raise Refused(f"{source}: has no {INTERPRETERS[0]}, expected Python 3.11; name another base")


def _removed(name: str, by: set[str]) -> bool:
    for path in (PurePosixPath(name), *PurePosixPath(name).parents[:-1]):
        if f"{path.parent}/{GONE}{path.name}".removeprefix("./") in by:
            return True
        if f"{path.parent}/{ALL_GONE}".removeprefix("./") in by:
            return True
    return False


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            found.update(data)
    return f"sha256:{found.hexdigest()}"
