"""An artifact in a registry: its two faces, its records, and how it was made, as one index."""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base import sealed
from ingot.base.digest import canonical
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.base.shared import make_folder
from ingot.registry import envelope, model_signing, modelpack, parts, provenance, transfer
from ingot.registry.connection import SMALL, Connection
from ingot.registry.listed import Listed
from ingot.registry.modelpack import (  # fmt: skip
    ACTION,
    EMPTY,
    FILES,
    IMAGES,
    MODEL,
    PROVENANCE,
    ROLE,
    SBOM,
    TITLE,
    VERIFICATION,
    described,
)
from ingot.registry.reference import DIGEST
from ingot.registry.tar_layer import TarLayer
from ingot.registry.transfer import Content
from ingot.registry.trusted import RECORD, SUBJECT
from ingot.store.records import MANIFEST, Record, Store

VERIFIED = "application/vnd.ingot.verification.v1+json"
BILL = "application/vnd.cyclonedx+json"
STAND_IN = "+standin"
SIGNATURE = ".model.sig"


@dataclass(frozen=True)
class Artifact:
    """One output of a record, and the record of its verification as it was written.

    `outputs` are all of the action, by the names that they have here: a record of the same bytes may have
    been written under others.
    """

    store: Store
    record: Record
    output: dict[str, Any]
    verified: Path
    outputs: list[dict[str, Any]]

    @property
    def title(self) -> str:
        return self.output["title"]

    @property
    def files(self) -> list[dict[str, Any]]:
        """Path inside the artifact, digest, size, executable: of each file."""
        return files(self.output, self.outputs)

    @property
    def digest(self) -> str:
        """What a verification record names: a file's, or that of a folder's SHA256SUMS."""
        return digest_of(self.output)

    def whole(self) -> None:
        """Refused where the store has not every byte any more, or what a registry cannot hold."""
        odd = [one["path"] for one in self.output.get("entries", []) if "digest" not in one]
        if odd:
            raise Refused(
                f"{self.title}/{odd[0]}: a link or an empty folder, expected files; not published"
            )
        config = self.record.manifest["config"]["digest"]
        if not all(map(self.store.has, {*self.record.files, config})):
            raise Refused(
                f"{self.title}: not whole in the store any more; ask for the target again"
            )

    def checked(self) -> dict[str, Any]:
        """The verification record.  Refused where it is not passed, or about other bytes."""
        found = read_json(self.verified, RECORD)
        if found["result"] != "passed":
            raise Refused(f"{self.verified}: {found['result']}, expected passed; verify it again")
        if found["sha256"] != self.digest:
            raise Refused(
                f"{self.title}: sha256 {self.digest[:12]}, but its record is about "
                f"{found['sha256'][:12]}; verify it again"
            )
        if STAND_IN in json.dumps([found, self.store.config(self.record)]):
            raise Refused(
                f"{self.title}: made by a stand-in, expected the real tool; build it on a GPU"
            )
        return found


def files(output: dict[str, Any], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files of an artifact.

    What one action writes as several files is one artifact: the root of a set is nothing without its
    ranks.
    """
    if output["kind"] == "folder":
        return [one for one in output["entries"] if "digest" in one]
    together = [one for one in outputs if one["kind"] == "file"]
    return [
        {"path": one["title"], "digest": one["digest"], "size": one["size"]} for one in together
    ]


def digest_of(output: dict[str, Any]) -> str:
    """SHA-256 of a file, or of a folder's SHA256SUMS; empty of a folder without one."""
    sums = [one["digest"] for one in output.get("entries", ()) if one["path"] == sealed.SUMS]
    return (output["digest"] if output["kind"] == "file" else "".join(sums)).removeprefix("sha256:")


@dataclass(frozen=True)
class Origin:
    """How it was made, and by what; signed where there is a key."""

    predicate: dict[str, Any]  # of provenance.py
    bill: bytes  # of sbom.py
    key: Any = None


class Index:
    """An index as it grows: contents to send first, then a manifest per role."""

    def __init__(self):
        self.contents: list[Content] = []
        self.manifests: dict[str, dict[str, Any]] = {}

    def blob(self, data: bytes, kind: str, **notes: str) -> dict[str, Any]:
        content = transfer.of_bytes(data)
        self.contents.append(content)
        return described(kind, content.digest, content.size, **notes)

    def file(self, digest: str, size: int, source: Any) -> None:
        self.contents.append(Content(digest, size, source))

    def document(self, role: str, data: bytes, kind: str, title: str) -> None:
        """A manifest around one document.  Refused: one that nobody would read again."""
        if len(data) > SMALL:
            raise Refused(
                f"{title}: {len(data) / 1e6:.1f} MB, expected {SMALL >> 20} MiB at most of a document in a "
                "registry; publish fewer artifacts at once"
            )
        layers = [self.blob(data, kind, **{TITLE: title})]
        config = self.blob(b"{}", EMPTY)
        self.manifests[role] = modelpack.manifest(config, layers, artifactType=kind)

    def digest(self, role: str) -> str:
        return transfer.of_bytes(canonical(self.manifests[role])).digest


def publish(
    connection: Connection,
    artifact: Artifact,
    tag: str,
    progress,
    origin: Origin,
    rule: str = parts.NONE,
    image: bool = False,
    sources: Iterable[str] = (),
) -> tuple[str, int]:
    """Push everything, the index last; its digest, and how many bytes were sent.

    By a `rule` of parts.py large files are several layers; then there is no image, whose layers are whole
    files, and no record of the store's.  An `image` sends every byte once more, as a tar.  `sources` are
    other repositories of the registry, of which blobs may be mounted.
    """
    verification = artifact.checked()
    artifact.whole()
    found, record = Index(), artifact.record
    if not _model(found, artifact, rule):
        if image:
            _images(found, artifact)
        _action(found, artifact)
    found.document(VERIFICATION, artifact.verified.read_bytes(), VERIFIED, artifact.verified.name)
    found.document(SBOM, origin.bill, BILL, f"{artifact.title}.cdx.json")
    if origin.key:
        signed = envelope.sign(files_statement(artifact), origin.key)
        found.document(FILES, signed, envelope.BUNDLE, f"{artifact.title}{SIGNATURE}")
    statement, kind = _statement(found, artifact, origin)
    found.document(PROVENANCE, statement, kind, f"{artifact.title}.sigstore.json")
    sent = transfer.push(connection, found.contents, progress, sources)
    manifests = []
    for role, one in found.manifests.items():
        digest, size = transfer.put_manifest(connection, one)
        entry = described(MANIFEST, digest, size, **{ROLE: role})
        if role in IMAGES:
            entry["platform"] = {"architecture": IMAGES[role], "os": "linux"}
        manifests.append(entry)
    notes = {TITLE: artifact.title, "ingot.rule": record.rule, "ingot.key": record.key}
    notes["ingot.reference"] = verification["reference"]
    digest, _ = transfer.put_manifest(connection, modelpack.index(manifests, **notes), tag)
    return digest, sent


def sign_too(listed: Listed, said: dict[str, Any], key: Any, tag: str) -> str:
    """Put another signature of `said`, which was checked, beside those of an index; its new digest.

    Refused where the tag names another index meanwhile.
    """
    one = Index()
    bundle = envelope.sign(said, key)
    one.document(PROVENANCE, bundle, envelope.BUNDLE, "second.sigstore.json")
    transfer.push(listed.connection, one.contents)
    digest, size = transfer.put_manifest(listed.connection, one.manifests[PROVENANCE])
    entries = listed.index["manifests"]
    if digest in [entry["digest"] for entry in entries]:
        return listed.digest
    entries = [*entries, described(MANIFEST, digest, size, **{ROLE: PROVENANCE})]
    if transfer.get_manifest(listed.connection, tag)[1] != listed.digest:
        raise Refused(f"{listed.reference}: {tag} names another index meanwhile; not signed")
    return transfer.put_manifest(listed.connection, {**listed.index, "manifests": entries}, tag)[0]


def files_statement(artifact: Artifact) -> dict[str, Any]:
    """What `model_signing verify` holds a folder of the artifact's files against."""
    named = {one["path"]: one["digest"] for one in artifact.files}
    return model_signing.statement(artifact.title, named)


def _model(found: Index, artifact: Artifact, rule: str) -> bool:
    """The files as raw layers; is one of them in parts?"""
    raw, store = [], artifact.store
    for one in artifact.files:
        path, name = store.blob(one["digest"]), one["path"]
        cut = [] if one.get("executable") else parts.cut(path, name, rule)
        if not cut:
            found.file(one["digest"], one["size"], path)
            executable = bool(one.get("executable"))
            raw.append(modelpack.layer(name, one["digest"], one["size"], executable))
        said = [one["digest"], [part.offset for part in cut]]
        known = remembered(store, said, lambda cut=cut: parts.digests(cut)) if cut else []
        for number, (part, digest) in enumerate(zip(cut, known, strict=True)):
            found.file(digest, part.size, part)
            layer = modelpack.layer(parts.NAME.format(name=name, number=number), digest, part.size)
            layer["annotations"] |= {modelpack.PART_OF: name, modelpack.WHOLE: one["digest"]}
            raw.append(layer | {"mediaType": modelpack.LAYER.format(kind=modelpack.kind(name))})
    if len(raw) > parts.MOST:
        raise Refused(
            f"{artifact.title}: {len(raw)} parts, expected {parts.MOST} at most; cut it by size"
        )
    family, form = artifact.title.partition(".")[0], artifact.title.rpartition(".")[2]
    config = modelpack.model_config(artifact.title, family, form, raw)
    found.manifests[MODEL] = modelpack.manifest(
        found.blob(config, modelpack.MODEL_CONFIG),
        raw,
        artifactType=modelpack.ARTIFACT,
        annotations={TITLE: artifact.title},
    )
    return len(raw) > len(artifact.files)


def _images(found: Index, artifact: Artifact) -> None:
    """Each file as a tar, for every platform that may mount or unpack it: data are the same on all."""
    tars, store = [], artifact.store
    for one in artifact.files:
        path, executable = store.blob(one["digest"]), bool(one.get("executable"))
        tar = TarLayer(one["path"], one["size"], path, executable)
        said = [one["digest"], tar.name, tar.executable]
        (digest,) = remembered(store, said, lambda tar=tar: [tar.digest()])
        found.file(digest, tar.nbytes, tar)
        tars.append(described(modelpack.TAR, digest, tar.nbytes))
    for role, architecture in IMAGES.items():
        config = found.blob(modelpack.image_config(tars, architecture), modelpack.IMAGE_CONFIG)
        found.manifests[role] = modelpack.manifest(config, tars)


def _action(found: Index, artifact: Artifact) -> None:
    """The store's own record, with further outputs of the action."""
    manifest = found.manifests[ACTION] = artifact.record.manifest
    for layer in (manifest["config"], *manifest["layers"]):
        found.file(layer["digest"], layer["size"], artifact.store.blob(layer["digest"]))


def _statement(found: Index, artifact: Artifact, origin: Origin) -> tuple[bytes, str]:
    """Provenance of every manifest so far, and of each file."""
    subjects = {f"{SUBJECT}{role}": found.digest(role) for role in found.manifests}
    subjects |= {one["path"]: one["digest"] for one in artifact.files}
    bare = {name: digest.removeprefix("sha256:") for name, digest in subjects.items()}
    said = envelope.statement(bare, provenance.KIND, origin.predicate)
    if origin.key is None:
        return canonical(said), envelope.PAYLOAD
    return envelope.sign(said, origin.key), envelope.BUNDLE


def remembered(store: Store, said: Any, read: Callable[[], list[str]]) -> list[str]:
    """Digests of a file's tar, or of its parts, for which it is read once: they follow from `said`."""
    place = store.root / "tars" / hashlib.sha256(json.dumps(said).encode()).hexdigest()
    with suppress(OSError):
        known = place.read_text().split()
        if known and all(DIGEST.fullmatch(one) for one in known):
            return known
    found = read()
    with suppress(OSError):  # a store that others own
        make_folder(place.parent, store.root)
        with store.temporary(place) as partial:
            partial.write_text("\n".join(found))
    return found
