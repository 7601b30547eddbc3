"""The store: what was built, by content, and which action gave it.  docs/store.md is its format.

oci-layout, index.json        an OCI image layout (github.com/opencontainers/image-spec)
index.journal                 what index.json lacks until the run ends
blobs/sha256/<hex>            each file once, read-only, named by what it holds
actions/<rule>/<key>          what an action gave: a digest, then the manifest it is the digest of
memo/, tensors/               what is known of files without reading them (base/digest.py,
                              model/checkpoint/identity.py)
quarantine/                   blobs that did not hold what their names say
distrusted/<rule>/<key>       what actions gave that rest on them: not taken from the shared cache
leases/, folders/             who builds now, and which working folders use the store
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.durable import regular_bytes, sync, sync_name
from ingot.base.refused import Refused
from ingot.base.shared import make_folder, share
from ingot.store import damage, form
from ingot.store.blobs import Blobs

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ACTION = "application/vnd.ingot.action.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"  # so that image tools can inspect a record
FILE = "application/vnd.ingot.file.v1"
TITLE = "org.opencontainers.image.title"
NAME = "org.opencontainers.image.ref.name"
DAY = 86400  # seconds
KEY = re.compile(r"[0-9a-f]{64}")
LAYOUT_FILE = "oci-layout"
LAYOUT = '{"imageLayoutVersion":"1.0.0"}'


@dataclass(frozen=True)
class Action:
    """One action as it goes on record: its key, the fields of it, and what it gave.

    `outputs` are those of `Blobs.take`, each with its `title`, in the order of the rule's.
    """

    rule: str
    key: str
    fields: dict[str, Any]
    outputs: list[dict]
    cost: dict[str, Any]
    about: dict[str, Any]  # what explanations need later


@dataclass(frozen=True)
class Record:
    """An action's record as it was read.  `outputs` are in the order of the rule's."""

    rule: str
    key: str
    manifest: dict
    outputs: list[dict]  # each with its `kind`, `digest` and `size`; a folder with its `entries`
    digest: str  # of the manifest
    path: Path

    @property
    def files(self) -> list[str]:
        """The digests of all files that the action gave."""
        return [layer["digest"] for layer in self.manifest["layers"]]

    @property
    def title(self) -> str:
        return ", ".join(output["title"] for output in self.outputs)

    @property
    def outcome(self) -> str:
        """A digest of what the action gave, whatever it cost."""
        return digest.of_json([output["digest"] for output in self.outputs])

    @property
    def tag(self) -> str:
        return f"{self.rule}-{self.key[:12]}"

    @property
    def used(self) -> float:
        """When it was of use last, in seconds of the epoch; 0 when it is gone."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0


class Store(Blobs):
    """Blobs and the records of actions.  It need not exist yet; it may be read-only."""

    def prepare(self) -> bool:
        """Lay the store out; False when it cannot be written to."""
        try:
            make_folder(self.blobs, self.root)
            layout = self.root / LAYOUT_FILE
            if not layout.is_file() or layout.read_text() != LAYOUT:
                with self.temporary(layout) as partial:
                    partial.write_text(LAYOUT)
            if not (self.root / "index.json").exists() or self._journal.exists():
                self.index()
            with self.locked("content", shared=True):
                return os.access(self.blobs, os.W_OK)
        except (OSError, ValueError):
            return False

    def record(self, action: Action) -> Record:
        """Write down what an action gave, what it cost, and what explanations need later."""
        layers = list(_layers(action.outputs))
        names = [layer["digest"] for layer in layers]
        labels = {"ingot.rule": action.rule, "ingot.key": action.key}
        config = digest.canonical(
            {
                "architecture": "unknown",
                "os": "unknown",
                "rootfs": {"type": "layers", "diff_ids": names},
                "config": {"Labels": labels},
                "ingot": {"fields": action.fields, "cost": action.cost, "about": action.about},
            }
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ACTION,
            "config": {"mediaType": CONFIG, "digest": self.put_bytes(config), "size": len(config)},
            "layers": layers,
            "annotations": {**labels, "ingot.outputs": json.dumps(action.outputs, sort_keys=True)},
        }
        text = digest.canonical(manifest)
        name = self.put_bytes(text)
        pointer = self.root / "actions" / action.rule / action.key
        make_folder(pointer.parent, self.root)
        with self.temporary(pointer) as partial:
            partial.write_bytes(name.encode() + b"\n" + text)
        sync_name(pointer)
        record = Record(action.rule, action.key, manifest, action.outputs, name, pointer)
        self._note(record)
        return record

    def persist_files(self, record: Record) -> None:
        """Wait until all that the action gave is on the disk: after a power loss it is not read again."""
        for name in {*record.files}:
            self.persist(name)
        with contextlib.suppress(OSError):
            sync(self.blobs)

    def lookup(self, rule: str, key: str) -> Record | None:
        """The record of an action; None when there is none, or when it is damaged."""
        return self.read(self.root / "actions" / rule / key)

    def read(self, pointer: Path) -> Record | None:
        """The record at `pointer`; None when it is damaged, or not of the form that we know."""
        try:
            name, _, text = regular_bytes(pointer).partition(b"\n")
        except OSError:
            return None
        found = self.parsed(text, pointer.parent.name)
        said = (pointer.name, name.decode("latin-1"))
        return found if found and (found.key, found.digest) == said else None

    def parsed(self, text: bytes, rule: str) -> Record | None:
        """The record whose manifest `text` is; None when it is none of `rule`, or of another form."""
        try:
            manifest = json.loads(text)
            notes = manifest["annotations"]
            outputs = json.loads(notes["ingot.outputs"])
            if b"\\ud" in text:  # half of a character, which nobody could write again
                digest.canonical([manifest, outputs])
            if notes["ingot.rule"] != rule or not KEY.fullmatch(notes["ingot.key"]):
                return None
            form.check(manifest, outputs, list(_layers(outputs)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Refused):
            return None
        name = f"sha256:{hashlib.sha256(text).hexdigest()}"
        pointer = self.root / "actions" / rule / notes["ingot.key"]
        return Record(rule, notes["ingot.key"], manifest, outputs, name, pointer)

    def adopt(self, record: Record, config: bytes, recipe: str) -> None:
        """Put down a record that another store made, its config where that is known, and the recipe by
        which it was found; its files may come later, or never."""
        if config and self.put_bytes(config) != record.manifest["config"]["digest"]:
            raise Refused(f"{record.title}: another config than its record names; not taken")
        text = digest.canonical(record.manifest)
        if self.put_bytes(text) != record.digest:
            raise Refused(
                f"{record.title}: its record is not as we write it, expected that; not taken"
            )
        make_folder(record.path.parent, self.root)
        with self.temporary(record.path) as partial:
            partial.write_bytes(record.digest.encode() + b"\n" + text)
        if KEY.fullmatch(recipe):
            place = self.root / "recipes" / record.rule / recipe
            make_folder(place.parent, self.root)
            with self.temporary(place) as partial:
                partial.write_text(record.key)

    def drop_what_rests_on(self, name: str) -> list[Record]:
        return damage.drop(self, [name])

    def distrust(self, record: Record) -> None:
        """Believe what this action gave nowhere: it, or one on the way to it, read what was damaged."""
        place = self._distrusted(record)
        known = place.read_text().split() if place.exists() else []
        if record.outcome not in known:
            make_folder(place.parent, self.root)
            with self.temporary(place) as partial:
                partial.write_text("\n".join([*known, record.outcome, ""]))

    def distrusts(self, record: Record) -> bool:
        try:
            return record.outcome in regular_bytes(self._distrusted(record)).decode().split()
        except (OSError, ValueError):
            return False

    def _distrusted(self, record: Record) -> Path:
        return self.root / "distrusted" / record.rule / record.key

    def drop_recipes(self) -> None:
        """Forget the recipes of records that are gone."""
        for place in self.root.glob("recipes/*/*"):
            if self.of_recipe(place.parent.name, place.name) is None:
                place.unlink(missing_ok=True)

    @property
    def knows_recipes(self) -> bool:
        return (self.root / "recipes").is_dir()

    def of_recipe(self, rule: str, recipe: str) -> Record | None:
        """The record that was adopted by a recipe."""
        try:
            key = regular_bytes(self.root / "recipes" / rule / recipe).decode("latin-1")
        except OSError:
            return None
        return self.lookup(rule, key) if KEY.fullmatch(key) else None

    def records(self, rule: str = "*") -> Iterator[Record]:
        for pointer in sorted(self.root.glob(f"actions/{rule}/[0-9a-f]*")):
            if found := self.read(pointer):
                yield found

    def of_keys(self, keys: Collection[str]) -> Iterator[Record]:
        for pointer in self.root.glob("actions/*/[0-9a-f]*"):
            if pointer.name in keys and (found := self.read(pointer)):
                yield found

    def youngest(self, rule: str, most: int) -> list[Record]:
        """At most so many records of a rule, the latest made or used first."""

        def age(pointer: Path) -> float:
            try:
                return -pointer.stat().st_mtime
            except OSError:
                return 0.0

        pointers = sorted(self.root.glob(f"actions/{rule}/[0-9a-f]*"), key=age)
        return [found for pointer in pointers[:most] if (found := self.read(pointer))]

    def config(self, record: Record) -> dict:
        """The fields of a record's key, and what the action cost; empty when they are gone."""
        try:
            text = regular_bytes(self.blob(record.manifest["config"]["digest"]))
            found = json.loads(text)["ingot"]
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}

    @property
    def _journal(self) -> Path:
        return self.root / "index.journal"

    def _note(self, record: Record) -> None:
        """A line for index.json, which is written once per run: it grows with the store."""
        with self.locked("index"), self._journal.open("ab") as journal:
            journal.write(digest.canonical(_descriptor(record)) + b"\n")
        share(self._journal, self.root)

    def index(self) -> None:
        """Bring index.json up to date: every record whose files are here, each once per key."""
        place = self.root / "index.json"
        with self.locked("index"):
            try:
                found = json.loads(regular_bytes(place))["manifests"]
                marks = {entry["annotations"][NAME]: entry for entry in found}
                for line in (
                    regular_bytes(self._journal).splitlines() if self._journal.exists() else ()
                ):
                    entry = json.loads(line)
                    marks[entry["annotations"][NAME]] = entry
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                here = (_descriptor(record) for record in self.records() if self._here(record))
                marks = {entry["annotations"][NAME]: entry for entry in here}
            with self.temporary(place) as partial:
                content = {"schemaVersion": 2, "manifests": list(marks.values())}
                partial.write_bytes(digest.canonical(content))
            self._journal.unlink(missing_ok=True)

    def reindex(self) -> None:
        """Write index.json from the records whose files are all here."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / "index.json").unlink()
        self.index()

    def _here(self, record: Record) -> bool:
        files = (record.manifest["config"], *record.manifest["layers"])
        return all(self.blob(file["digest"]).exists() for file in files)

    def used(self, record: Record) -> None:
        """Note, once per day, that a record was of use: gc goes by it."""
        with contextlib.suppress(OSError):
            if time.time() - record.path.stat().st_mtime > DAY:
                os.utime(record.path)


def _layers(outputs: list[dict]) -> Iterator[dict]:
    """A layer per file, named by its place in the output that it belongs to."""
    for number, output in enumerate(outputs):
        for file in output.get("entries", [output]):
            if "digest" not in file:
                continue
            title = f"{output['title']}/{file['path']}" if "path" in file else output["title"]
            notes = {TITLE: title, "ingot.output": str(number)}
            if file.get("executable"):
                notes["ingot.executable"] = "true"
            yield {
                "mediaType": FILE,
                "digest": file["digest"],
                "size": file["size"],
                "annotations": notes,
            }


def _descriptor(record: Record) -> dict:
    text = digest.canonical(record.manifest)
    return {
        "mediaType": MANIFEST,
        "artifactType": ACTION,
        "digest": record.digest,
        "size": len(text),
        "annotations": {NAME: record.tag},
    }
