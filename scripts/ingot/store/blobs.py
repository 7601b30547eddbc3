"""The store: what was built, by content, and which action gave it.  artifacts/README.md is its format.

    oci-layout, index.json        an OCI image layout (github.com/opencontainers/image-spec)
    blobs/sha256/<hex>            each file once, read-only, named by what it holds
    actions/<rule>/<key>          what an action gave: a digest, then the manifest it is the digest of
    memo/, tensors/               what is known of files without reading them (digest.py, weights.py)
    quarantine/                   blobs that did not hold what their names say
    leases/, folders/             who builds now, and which working folders use the store

Nothing is written in place: a temporary name, then a rename.  Many processes may write at once, on
one shared file system; a process killed anywhere leaves at most a temporary name behind.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingot.files import digest
from ingot.files.atomic import partial_of, replace_folder

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ACTION = "application/vnd.ingot.action.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"  # so that image tools can inspect a record
FILE = "application/vnd.ingot.file.v1"
TITLE = "org.opencontainers.image.title"
NAME = "org.opencontainers.image.ref.name"
LAYOUT = '{"imageLayoutVersion":"1.0.0"}'
SMALL = 1 << 20  # bytes; inside folders, smaller files are copies that may be edited


@dataclass(frozen=True)
class Record:
    """What one action gave.  `outputs` are in the order of the rule's."""

    rule: str
    key: str
    manifest: dict
    digest: str  # of the manifest
    path: Path

    @property
    def outputs(self) -> list[dict]:
        """Each with its `kind`, `digest` and `size`; a folder with its `entries`."""
        return json.loads(self.manifest["annotations"]["ingot.outputs"])


class Store:
    """The store at `root`, by default the user's.  It need not exist yet; it may be read-only."""

    def __init__(self, root: Path | None = None):
        self.root = root or digest.home()

    # Blobs

    def blob(self, name: str) -> Path:
        return self.root / "blobs" / "sha256" / name.removeprefix("sha256:")

    def has(self, name: str) -> bool:
        """Is the blob there, and does it hold what its name says?  Read only if it may have changed."""
        blob = self.blob(name)
        if digest.known(blob) == name:
            return True
        try:
            before = digest.settled(blob)
            if f"sha256:{digest.read(blob)}" == name:
                digest.remember(before, name)
                return True
        except OSError:
            return False
        self.quarantine(name)
        return False

    def quarantine(self, name: str) -> None:
        """Move a damaged blob aside, so that nobody takes it and what needs it is built again."""
        blob = self.blob(name)
        aside = self.root / "quarantine" / f"{blob.name}-{time.time_ns()}"
        where = "not taken"
        with contextlib.suppress(OSError):
            aside.parent.mkdir(exist_ok=True)
            blob.rename(aside)
            where = f"moved to {aside.parent}"
        text = f"{blob}: does not hold what its name says, {where}; what needs it is built again"
        print(text, file=sys.stderr)

    def put(self, path: Path, name: str, linked: bool = True) -> None:
        """Make the file at `path`, which holds `name`, a blob: by a link if it can be, else a copy."""
        if self.has(name):
            return
        blob, before = self.blob(name), path.stat()
        with self.temporary(blob) as partial:
            try:
                if not linked:
                    raise OSError("a copy is wanted")
                path.chmod(0o444)
                os.link(path, partial)
            except OSError:  # across file systems, or where there are no links
                digest.copy(path, partial, name)
                partial.chmod(0o444)
                before = partial.stat()
        digest.vouch(blob, before, name)

    def put_bytes(self, text: bytes) -> str:
        name = f"sha256:{hashlib.sha256(text).hexdigest()}"
        if not self.has(name):
            with self.temporary(self.blob(name)) as partial:
                partial.write_bytes(text)
                partial.chmod(0o444)
        return name

    @contextlib.contextmanager
    def temporary(self, path: Path) -> Iterator[Path]:
        partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    # Files and folders in and out

    def take(self, path: Path) -> dict:
        """Take in what a step wrote at `path`, and leave a link in its place."""
        if path.is_dir():
            return self._take_folder(path)
        name = digest.of(path)
        before = path.stat()
        self.put(path.resolve(), name)
        self._point(path, name)
        digest.vouch(path, before, name)  # its other name went, so its ctime changed
        return {"kind": "file", "digest": name, "size": before.st_size}

    def _take_folder(self, folder: Path) -> dict:
        name, entries = digest.tree(folder)
        size = 0
        for entry in entries:
            if "digest" in entry:
                path = folder / entry["path"]
                before = path.stat()
                entry["size"] = before.st_size
                size += entry["size"]
                self.put(path, entry["digest"], linked=_shared(entry))
                digest.vouch(path, before, entry["digest"])  # a link changes its ctime
        return {"kind": "folder", "digest": name, "size": size, "entries": entries}

    def whole(self, output: dict) -> bool:
        """Can this output be restored?"""
        files = output.get("entries", [output])
        return all(self.has(file["digest"]) for file in files if "digest" in file)

    def restore(self, output: dict, path: Path) -> None:
        """Put an output back at `path`; what stood there goes once the new one stands."""
        if not self.whole(output):
            raise FileNotFoundError("its bytes are not in the store any more")
        with partial_of(path) as partial:
            if output["kind"] == "file":
                if path.is_dir() and not path.is_symlink():
                    path.rename(partial)  # a folder of that name goes with the partial
                self._point(path, output["digest"])
                return
            partial.mkdir()
            for entry in output["entries"]:
                self._restore_entry(entry, partial / entry["path"])
            replace_folder(partial, path)

    def _restore_entry(self, entry: dict, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in entry:
            path.symlink_to(entry["link"])
        elif "folder" in entry:
            path.mkdir()
        elif _shared(entry):
            digest.link(self.blob(entry["digest"]), path)
        else:
            digest.copy(self.blob(entry["digest"]), path, entry["digest"])
            path.chmod(0o755 if entry["executable"] else 0o644)
            digest.remember(digest.stamp_of(path), entry["digest"])

    def _point(self, path: Path, name: str) -> None:
        """Let `path` be the blob `name`: a symbolic link, else a hard link, else a copy.

        A symbolic link leaves the blob's ctime alone when it comes and when it goes, so that the blob
        need not be read again.
        """
        blob = self.blob(name)
        partial = path.with_name(f".{path.name}.{os.getpid()}.link.partial")
        partial.unlink(missing_ok=True)
        try:
            try:
                partial.symlink_to(blob)
            except OSError:
                if digest.known(path) == name:
                    return  # it stands there already
                digest.link(blob, partial)
            before = partial.stat()  # of the blob, wherever the link leads
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        digest.vouch(path, before, name)

    def place(self, name: str, path: Path) -> bool:
        """Put the blob `name` at `path`; False when the store does not have it."""
        if not self.has(name):
            return False
        self._point(path, name)
        return True

    # Records

    def record(
        self, rule: str, key: str, fields: dict, outputs: list[dict], cost: dict, about: dict
    ) -> Record:
        """Write down what an action gave, what it cost, and what explanations need later."""
        layers = []
        for number, output in enumerate(outputs):
            for file in output.get("entries", [output]):
                if "digest" in file:
                    title = (
                        f"{output['title']}/{file['path']}" if "path" in file else output["title"]
                    )
                    notes = {TITLE: title, "ingot.output": str(number)}
                    if file.get("executable"):
                        notes["ingot.executable"] = "true"
                    layers.append(
                        {
                            "mediaType": FILE,
                            "digest": file["digest"],
                            "size": file["size"],
                            "annotations": notes,
                        }
                    )
        found = {"fields": fields, "cost": cost, "about": about}
        names = [layer["digest"] for layer in layers]
        config = digest.canonical(
            {
                "architecture": "unknown",
                "os": "unknown",
                "rootfs": {"type": "layers", "diff_ids": names},
                "config": {"Labels": {"ingot.rule": rule, "ingot.key": key}},
                "ingot": found,
            }
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ACTION,
            "config": {"mediaType": CONFIG, "digest": self.put_bytes(config), "size": len(config)},
            "layers": layers,
            "annotations": {
                "ingot.rule": rule,
                "ingot.key": key,
                "ingot.outputs": json.dumps(outputs, sort_keys=True),
            },
        }
        text = digest.canonical(manifest)
        name = self.put_bytes(text)
        pointer = self.root / "actions" / rule / key
        pointer.parent.mkdir(parents=True, exist_ok=True)
        with self.temporary(pointer) as partial:
            partial.write_bytes(name.encode() + b"\n" + text)
        record = Record(rule, key, manifest, name, pointer)
        self.index(add=record)
        return record

    def lookup(self, rule: str, key: str) -> Record | None:
        """The record of an action; None when there is none, or when it is damaged."""
        return self.read(self.root / "actions" / rule / key)

    def read(self, pointer: Path) -> Record | None:
        try:
            name, _, text = pointer.read_bytes().partition(b"\n")
            if name.decode() != f"sha256:{hashlib.sha256(text).hexdigest()}":
                return None
            manifest = json.loads(text)
            notes = manifest["annotations"]
            if (notes["ingot.rule"], notes["ingot.key"]) != (pointer.parent.name, pointer.name):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Record(pointer.parent.name, pointer.name, manifest, name.decode(), pointer)

    def records(self, rule: str = "*") -> Iterator[Record]:
        for pointer in sorted(self.root.glob(f"actions/{rule}/[0-9a-f]*")):
            if found := self.read(pointer):
                yield found

    def config(self, record: Record) -> dict:
        """The fields of a record's key, and what the action cost; empty when they are gone."""
        try:
            text = self.blob(record.manifest["config"]["digest"]).read_bytes()
            return json.loads(text)["ingot"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def index(self, add: Record | None = None) -> None:
        """Bring index.json up to date: every record whose files are here, each once a key."""
        place = self.root / "index.json"
        with self.locked("index"):
            try:
                entries = json.loads(place.read_bytes())["manifests"]
                names = {entry["digest"] for entry in entries}
            except (OSError, ValueError, KeyError, TypeError):
                entries, names = [_descriptor(r) for r in self.records() if self._here(r)], set()
            if add and add.digest not in names:  # else: rebuilt from the records, or there
                fresh = _descriptor(add)
                mark = fresh["annotations"][NAME]
                entries = [e for e in entries if e["annotations"][NAME] != mark] + [fresh]
            with self.temporary(place) as partial:
                partial.write_bytes(digest.canonical({"schemaVersion": 2, "manifests": entries}))

    def _here(self, record: Record) -> bool:
        files = (record.manifest["config"], *record.manifest["layers"])
        return all(self.blob(file["digest"]).exists() for file in files)

    def used(self, record: Record) -> None:
        """Note, once a day, that a record was of use: gc goes by it."""
        with contextlib.suppress(OSError):
            if time.time() - record.path.stat().st_mtime > 86400:
                os.utime(record.path)

    # Who is here

    def prepare(self) -> bool:
        """Lay the store out; False when it cannot be written to."""
        try:
            self.blob("").mkdir(parents=True, exist_ok=True)
            if not (self.root / "oci-layout").exists():
                with self.temporary(self.root / "oci-layout") as partial:
                    partial.write_text(LAYOUT)
            if not (self.root / "index.json").exists():
                self.index()
            with self.locked("content", shared=True):
                return os.access(self.blob(""), os.W_OK)
        except OSError:
            return False

    @contextlib.contextmanager
    def locked(self, name: str, shared: bool = False) -> Iterator[None]:
        """Hold the store's lock `name`: `index` while its file is replaced, `content` while blobs
        come (shared) or go."""
        with (self.root / f".{name}.busy").open("a") as busy:
            fcntl.flock(busy, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield


def _shared(entry: dict) -> bool:
    """Is a file of a folder one with its blob, by a hard link, rather than a copy?"""
    return entry["size"] >= SMALL and not entry["executable"]


def _descriptor(record: Record) -> dict:
    text = digest.canonical(record.manifest)
    return {
        "mediaType": MANIFEST,
        "artifactType": ACTION,
        "digest": record.digest,
        "size": len(text),
        "annotations": {NAME: f"{record.rule}-{record.key[:12]}"},
    }
