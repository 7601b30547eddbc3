"""An artifact in a registry: its two faces, its verification record, its action, as one index."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.fields import read_json
from ingot.files import sealed
from ingot.files.shared import make_folder
from ingot.publishing import modelpack
from ingot.publishing.modelpack import IMAGE, MODEL, ROLE, described
from ingot.refused import Refused
from ingot.registry import transfer
from ingot.registry.connection import Connection
from ingot.registry.tar_layer import TarLayer
from ingot.registry.transfer import Content
from ingot.store.records import MANIFEST, TITLE, Record, Store

VERIFICATION = "application/vnd.ingot.verification.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
STAND_IN = "+standin"


@dataclass(frozen=True)
class Artifact:
    """One output of a record, and the record of its verification as it was written."""

    store: Store
    record: Record
    output: dict[str, Any]
    verified: Path

    @property
    def title(self) -> str:
        return self.output["title"]

    @property
    def files(self) -> list[dict[str, Any]]:
        """Path inside the artifact, digest, size, executable: of each file."""
        single = {"path": self.title, **{k: self.output[k] for k in ("digest", "size")}}
        return [one for one in self.output.get("entries", [single]) if "digest" in one]

    @property
    def digest(self) -> str:
        """What a verification record names: a file's, or that of a folder's SHA256SUMS."""
        for one in self.files:
            if self.output["kind"] == "file" or one["path"] == sealed.SUMS:
                return one["digest"].removeprefix("sha256:")
        return ""

    def whole(self) -> None:
        """Refused where the store has not every byte any more, or what a registry cannot hold."""
        odd = [one["path"] for one in self.output.get("entries", []) if "digest" not in one]
        if odd:
            raise Refused(
                f"{self.title}/{odd[0]}: a link or an empty folder, expected files; not published"
            )
        config = self.record.manifest["config"]["digest"]
        if not all(map(self.store.has, {*self.record.files, config})):
            raise Refused(f"{self.title}: not whole in the store any more; build it again")

    def checked(self) -> dict[str, Any]:
        """The verification record.  Refused where it is not passed, or about other bytes."""
        found = read_json(self.verified)
        if found.get("result") != "passed":
            raise Refused(
                f"{self.verified}: {found.get('result')}, expected passed; verify it again"
            )
        if found.get("sha256") != self.digest:
            raise Refused(
                f"{self.title}: sha256 {self.digest[:12]}, but its record is about "
                f"{str(found.get('sha256'))[:12]}; verify it again"
            )
        if STAND_IN in json.dumps([found, self.store.config(self.record)]):
            raise Refused(
                f"{self.title}: made by a stand-in, expected the real tool; build it on a GPU"
            )
        return found


def publish(connection: Connection, artifact: Artifact, tag: str, progress) -> tuple[str, int]:
    """Push everything, the index last; its digest, and how many bytes were sent."""
    verification = artifact.checked()
    artifact.whole()
    store, record = artifact.store, artifact.record
    contents: list[Content] = []

    def blob(data: bytes, kind: str, **notes: str) -> dict[str, Any]:
        content = transfer.of_bytes(data)
        contents.append(content)
        return described(kind, content.digest, content.size, **notes)

    raw, tars = [], []
    for one in artifact.files:
        path, executable = store.blob(one["digest"]), bool(one.get("executable"))
        contents.append(Content(one["digest"], one["size"], path))
        raw.append(modelpack.layer(one["path"], one["digest"], one["size"], executable))
        tar = TarLayer(one["path"], one["size"], path, executable)
        digest = tar_digest(store, one, tar)
        contents.append(Content(digest, tar.nbytes, tar))
        tars.append(described(modelpack.TAR, digest, tar.nbytes))
    form = artifact.title.partition(".")[2]
    family = artifact.title.partition(".")[0]
    text = artifact.verified.read_bytes()
    config = store.blob(record.manifest["config"]["digest"])
    contents.append(Content(record.manifest["config"]["digest"], config.stat().st_size, config))
    for layer in record.manifest["layers"]:  # of further outputs of the action
        contents.append(Content(layer["digest"], layer["size"], store.blob(layer["digest"])))
    model_config = modelpack.model_config(artifact.title, family, form, raw)
    model = modelpack.manifest(
        blob(model_config, modelpack.MODEL_CONFIG),
        raw,
        artifactType=modelpack.ARTIFACT,
        annotations={TITLE: artifact.title},
    )
    image = modelpack.manifest(blob(modelpack.image_config(tars), modelpack.IMAGE_CONFIG), tars)
    report = modelpack.manifest(
        blob(b"{}", EMPTY),
        [blob(text, VERIFICATION, **{TITLE: artifact.verified.name})],
        artifactType=VERIFICATION,
    )
    sent = transfer.push(connection, contents, progress)
    manifests = []
    for role, one in {
        MODEL: model,
        IMAGE: image,
        "action": record.manifest,
        "verification": report,
    }.items():
        digest, size = transfer.put_manifest(connection, one)
        entry = described(MANIFEST, digest, size, **{ROLE: role})
        if role == IMAGE:
            entry["platform"] = {"architecture": "amd64", "os": "linux"}
        manifests.append(entry)
    notes = {TITLE: artifact.title, "ingot.rule": record.rule, "ingot.key": record.key}
    notes["ingot.reference"] = str(verification.get("reference", ""))
    digest, _ = transfer.put_manifest(connection, modelpack.index(manifests, **notes), tag)
    return digest, sent


def tar_digest(store: Store, file: dict[str, Any], layer: TarLayer) -> str:
    """That of a file's tar, which is read for it once: it follows from the file's own and its name."""
    said = json.dumps([file["digest"], layer.name, layer.executable])
    place = store.root / "tars" / hashlib.sha256(said.encode()).hexdigest()
    try:
        known = place.read_text()
        if len(known) == 71:
            return known
    except OSError:
        pass
    found = layer.digest()
    with suppress(OSError):  # a store that others own
        make_folder(place.parent, store.root)
        with store.temporary(place) as partial:
            partial.write_text(found)
    return found
