"""The files of the store: each once, read-only, named by what it holds.

Nothing is written in place: a temporary name, then a rename.  Many processes may write at once, on
one shared file system; a process killed anywhere leaves at most a temporary name behind.
"""

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ingot.base import digest, memo
from ingot.base.atomic import partial_of, replace_folder
from ingot.base.durable import SMALL, sync
from ingot.base.refused import Refused
from ingot.base.shared import make_folder, share
from ingot.store import locks


class Blobs:
    """The store at `root`, by default the user's.  It need not exist yet; it may be read-only."""

    def __init__(self, root: Path | None = None):
        self.root = root or memo.home()

    # Blobs

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    def blob(self, name: str) -> Path:
        """Where the file is that holds `name`.  Refused when that is no digest but, say, a path."""
        if not digest.NAME.fullmatch(name):
            raise Refused(f"{name}: not a digest, expected sha256: and 64 hex digits; not taken")
        return self.blobs / name.removeprefix("sha256:")

    def has(self, name: str) -> bool:
        """Is the blob there, and does it hold what its name says?  Read only if it may have changed."""
        blob = self.blob(name)
        if memo.stamp_of(blob) is None:
            return False
        if memo.known(blob) == name:
            return True
        try:
            before = digest.settled(blob)
            if f"sha256:{digest.read(blob)}" == name:
                memo.remember(before, name, durable=True)
                return True
        except OSError:
            return False
        self.quarantine(name)
        return False

    def quarantine(self, name: str) -> list:
        """Move a damaged blob aside, so that nobody takes it and what needs it is built again; the records
        that were made of it, which are dropped."""
        dropped = self.drop_what_rests_on(name)
        blob = self.blob(name)
        aside = self.root / "quarantine" / f"{blob.name}-{time.time_ns()}"
        where = "not taken"
        with contextlib.suppress(OSError):
            make_folder(aside.parent, self.root)
            blob.rename(aside)
            where = f"moved to {aside.parent}"
        text = f"{blob}: does not hold what its name says, {where}; what needs it is built again"
        print(text, file=sys.stderr)
        return dropped

    def drop_what_rests_on(self, name: str) -> list:
        """A store of records drops those that were made of it."""
        return []

    def damaged_since(self, began: float, names: Iterable[str]) -> list[str]:
        """Those of `names` that were found damaged after `began`, in seconds of 1970."""
        aside = (path.name.rpartition("-") for path in (self.root / "quarantine").glob("*-*"))
        late = {f"sha256:{name}" for name, _, when in aside if int(when) / 1e9 >= began}
        return [name for name in names if name in late]

    def put(self, path: Path, name: str, linked: bool = True, twice: bool = True) -> None:
        """Make the file at `path`, which holds `name`, a blob: by a link if it can be, else a copy.

        Where its bytes may not lie on the disk `twice`, and a copy cannot share them, there is no blob.
        """
        if self.has(name):
            return
        blob, before = self.blob(name), path.stat()
        with contextlib.suppress(digest.TwiceError):
            with self.temporary(blob) as partial:
                try:
                    if not linked:
                        raise OSError("a copy is wanted")
                    os.link(path, partial)
                    # not before: where no link can be made, the file's times stay
                    partial.chmod(0o444)
                except OSError:  # across file systems, or where there are no links
                    digest.copy(path, partial, name, twice)
                    partial.chmod(0o444)
                    before = partial.stat()
            memo.vouch(blob, before, name)

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
            if not path.is_relative_to(self.blobs):
                share(partial, self.root)
            if partial.stat().st_size <= SMALL:
                sync(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    # Files and folders in and out

    def take(self, path: Path, twice: bool = True) -> dict:
        """Take in what a step wrote at `path`, and leave a link in its place.

        Where not `twice`, a large file that onnx reads, and that shares its bytes with no copy, is in the
        folder alone.
        """
        if path.is_dir():
            return self._take_folder(path, twice)
        name = digest.of(path)
        before = path.stat()
        self.put(path.resolve(), name)
        self._point(path, name)
        memo.vouch(path, before, name)  # its other name went, so its ctime changed
        return {"kind": "file", "digest": name, "size": before.st_size}

    def _take_folder(self, folder: Path, twice: bool) -> dict:
        name, entries = digest.tree(folder)
        size, shared = 0, _shared(entries)
        for entry in entries:
            if "digest" in entry:
                path = folder / entry["path"]
                before = path.stat()
                entry["size"] = before.st_size
                size += entry["size"]
                linked, small = shared(entry), entry["size"] < SMALL
                self.put(path, entry["digest"], linked, twice or linked or small)
                memo.vouch(path, before, entry["digest"])  # a link changes its ctime
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
            shared = _shared(output["entries"])
            for entry in output["entries"]:
                self._restore_entry(entry, partial / entry["path"], shared)
            replace_folder(partial, path)

    def _restore_entry(self, entry: dict, path: Path, shared: Callable[[dict], bool]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in entry:
            path.symlink_to(entry["link"])
        elif "folder" in entry:
            path.mkdir()
        elif shared(entry):
            digest.link(self.blob(entry["digest"]), path)
        else:
            digest.copy(self.blob(entry["digest"]), path, entry["digest"])
            path.chmod(0o755 if entry["executable"] else 0o644)
            memo.remember(memo.stamp_of(path), entry["digest"])

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
                if memo.known(path) == name:
                    return  # it is there already
                digest.link(blob, partial)
            before = partial.stat()  # of the blob, wherever the link leads
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        memo.vouch(path, before, name)

    def place(self, name: str, path: Path) -> bool:
        """Put the blob `name` at `path`; False when the store does not have it."""
        if not self.has(name):
            return False
        self._point(path, name)
        return True

    def locked(self, name: str, shared: bool = False) -> contextlib.AbstractContextManager:
        """Hold the store's lock `name`: `index` while its file is replaced, `content` while blobs
        come (shared) or go."""
        return locks.locked(self.root / f".{name}.busy", shared)

    def persist(self, name: str) -> None:
        """See to it that the blob is on the disk, and say so in its memo."""
        blob = self.blob(name)
        before = memo.stamp_of(blob)
        if before and memo.recall(before) == name:
            sync(blob)
            if memo.stamp_of(blob) == before:
                memo.remember(before, name, durable=True)


def _shared(entries: list[dict]) -> Callable[[dict], bool]:
    """Of a folder: is a file one with its blob, by a hard link, rather than a copy that may be edited?

    None is beside an ONNX graph: onnx takes a data file of two names for an attack, and does not read it.
    """
    alone = any("/" not in one["path"] and one["path"].endswith(".onnx") for one in entries)

    def shared(entry: dict) -> bool:
        whole = entry["size"] >= SMALL and not entry["executable"]
        return whole and not (alone and "/" not in entry["path"])

    return shared
