"""What a published index lists, by role; each manifest checked by its digest, nothing else believed."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ingot.base.digest import canonical
from ingot.base.fields import Whole, held
from ingot.base.refused import Refused
from ingot.registry import modelpack, transfer
from ingot.registry.connection import SMALL, Connection
from ingot.registry.modelpack import ROLE
from ingot.registry.reference import DIGEST
from ingot.store.records import ACTION, Record, Store

SIZE = Whole(0, 2**63 - 1)
DESCRIPTOR = {"mediaType": str, "digest": str, "size": SIZE, "annotations?": {str: str}}
INDEX = {"manifests": [DESCRIPTOR], "annotations?": {str: str}}
MANIFEST = {"config": DESCRIPTOR, "layers": [DESCRIPTOR], "annotations?": {str: str}}


@dataclass(frozen=True)
class Listed:
    """An index, or a single ModelPack manifest that is one of itself."""

    connection: Connection
    index: dict[str, Any]
    digest: str

    @property
    def reference(self) -> str:
        return str(self.connection.reference.at(self.digest))

    def digests(self, role: str) -> list[str]:
        found = [
            one["digest"] for one in self.index["manifests"]
            if one.get("annotations", {}).get(ROLE) == role
        ]  # fmt: skip
        for digest in found:
            if not DIGEST.fullmatch(digest):
                raise Refused(f"{self.reference}: {digest!r:.80} is no sha256 digest; not taken")
        return found

    def at(self, digest: str) -> "Listed":
        """An index that this one lists."""
        return read(self.connection, digest)

    def one(self, role: str) -> str:
        """The digest of the only manifest of a role."""
        found = self.digests(role)
        if len(found) != 1:
            raise Refused(
                f"{self.reference}: lists {len(found)} of the role {role}, expected one; name it by digest"
            )
        return found[0]

    def manifest(self, digest: str) -> dict[str, Any]:
        found, _ = transfer.get_manifest(self.connection, digest)
        held(self.reference, found, MANIFEST)
        return found

    def only_layer(self, digest: str) -> tuple[str, bytes]:
        """Media type and bytes of the single small layer of a manifest."""
        layers = self.manifest(digest)["layers"]
        if len(layers) != 1 or layers[0]["size"] > SMALL:
            raise Refused(
                f"{self.reference}: {digest} has {len(layers)} layers, expected one; not taken"
            )
        return layers[0]["mediaType"], transfer.get(self.connection, layers[0])

    def title(self) -> str:
        """The artifact's own name: a plain one."""
        manifest = self.manifest(self.one(modelpack.MODEL))
        record = record_of(self.reference, manifest)
        notes = record.outputs[0] if record else manifest.get("annotations", {})
        title = notes.get("title" if record else modelpack.TITLE, "")
        plain = title == PurePosixPath(title).name and title.isprintable()
        if not title or not plain or title.startswith((".", "-")):
            raise Refused(f"{self.reference}: {title!r} is no plain name; say where to put it")
        return title


def read(connection: Connection, digest: str = "") -> Listed:
    """What stands behind the connection's reference, or behind a digest of its repository."""
    name = digest or connection.reference.name or "latest"
    found, digest = transfer.get_manifest(connection, name)
    if found["mediaType"] == modelpack.INDEX:
        held(str(connection.reference), found, INDEX)
        return Listed(connection, found, digest)
    held(str(connection.reference), found, MANIFEST)
    entry = modelpack.described(modelpack.MANIFEST, digest, 0, **{ROLE: modelpack.MODEL})
    return Listed(connection, {"manifests": [entry]}, digest)


def record_of(reference: str, manifest: dict[str, Any]) -> Record | None:
    """The record of a store that a manifest is, as `make publish` copies it; None of a ModelPack.

    Refused: one that calls itself a record, and is not of its layers.
    """
    if manifest.get("artifactType") != ACTION:
        return None
    rule = manifest.get("annotations", {}).get("ingot.rule", "")
    found = Store().parsed(canonical(manifest), rule)
    if found is None:
        raise Refused(f"{reference}: no record of a store, expected that; publish it again")
    return found
