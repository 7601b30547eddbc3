"""A published artifact back on disk: exactly its bytes, exactly in the folder asked for, or nothing.

What a registry says is not trusted: names stay inside the folder, digests and sizes hold, and nothing
has its name before all of it has come.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any
from unicodedata import normalize

from ingot.files.durable import sync
from ingot.publishing import modelpack
from ingot.publishing.listed import Listed
from ingot.refused import Refused
from ingot.registry import transfer
from ingot.registry.reference import DIGEST
from ingot.terminal.progress import Progress

MOST = 100_000  # files of an artifact
LONGEST, COMPONENT = 1024, 200  # bytes of a name, and of a part of it


@dataclass(frozen=True)
class File:
    name: str
    digest: str
    size: int
    executable: bool


def files_of(reference: str, manifest: dict[str, Any]) -> list[File]:
    """The files that a ModelPack manifest names.  Refused: names that leave the folder, or come twice."""
    found: list[File] = []
    for layer in manifest["layers"]:
        notes = layer.get("annotations", {})
        name = notes.get(modelpack.FILEPATH)
        if name is None or not layer["mediaType"].endswith(".raw"):
            raise Refused(
                f"{reference}: a layer of {layer['mediaType']}, expected raw files; pull it by another tool"
            )
        if not DIGEST.fullmatch(layer["digest"]):
            raise Refused(f"{reference}: {layer['digest']!r} is no sha256 digest; publish it again")
        found.append(File(name, layer["digest"], layer["size"], _executable(notes)))
    _stay_inside(reference, [file.name for file in found])
    return found


def _executable(notes: dict[str, str]) -> bool:
    try:
        return bool(json.loads(notes.get(modelpack.FILE_METADATA, "{}")).get("mode", 0) & 0o100)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False


def _stay_inside(reference: str, names: list[str]) -> None:
    """Each name is a plain path below the folder, and no two are one on any file system."""
    if not 0 < len(names) <= MOST:
        raise Refused(f"{reference}: {len(names)} files, expected 1 to {MOST}; publish it again")
    seen: dict[str, str] = {}
    for name in names:
        if len(name.encode()) > LONGEST or any(
            len(p.encode()) > COMPONENT for p in name.split("/")
        ):
            raise Refused(
                f"{reference}: {name[:40]!r}... is too long a name, expected {LONGEST} bytes; not taken"
            )
        path = PurePosixPath(name)
        plain = str(path) == name and name.isprintable() and not set(name) & set('\\:*?"<>|')
        if not plain or path.is_absolute() or {"..", "."} & set(path.parts) or not path.parts:
            raise Refused(
                f"{reference}: {name!r} would leave the folder, expected a path inside; not taken"
            )
        for part in (path, *list(path.parents)[:-1]):
            key = normalize("NFC", str(part)).casefold()
            if seen.setdefault(key, str(part)) != str(part):
                raise Refused(
                    f"{reference}: {name!r} and {seen[key]!r} are one name to some file systems; not taken"
                )
    whole = {name.casefold() for name in names}
    if len(whole) < len(names):
        raise Refused(f"{reference}: two files of one name, expected each once; not taken")
    below = {
        str(parent).casefold()
        for name in names
        for parent in list(PurePosixPath(name).parents)[:-1]
    }
    if odd := sorted(whole & below):
        raise Refused(f"{reference}: {odd[0]!r} is a file and a folder; not taken")


@contextmanager
def coming(target: Path, what: str) -> Iterator[Path]:
    """A name beside `target` for what is coming, which another pull of `what` goes on with.

    One pull of a target at a time.
    """
    name = hashlib.sha256(what.encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Refused(f"{target}: another pull of it runs; wait for its end") from None
            with suppress(FileNotFoundError):
                if lock.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    try:
                        yield target.with_name(f".{target.name}.{name}.coming")
                    finally:
                        lock.unlink()
                    return


def pull(listed: Listed, target: Path, only: list[str]) -> list[File]:
    """Write the artifact to `target`, a folder, or the file itself where it is a single one."""
    digest, connection = listed.one(modelpack.MODEL), listed.connection
    reference = listed.reference
    files = files_of(reference, listed.manifest(digest))
    if unknown := sorted(set(only) - {file.name for file in files}):
        raise Refused(f"{reference}: has no {unknown[0]}, expected a file of it; check --only")
    single = len(files) == 1 and "/" not in files[0].name
    files = [file for file in files if not only or file.name in only]
    progress = Progress(f"pulling {target.name}", sum(file.size for file in files))
    with coming(target, " ".join([digest, *sorted(only)])) as partial:

        def one(file: File, stop: Event) -> None:
            place = partial if single else partial / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            transfer.pull(connection, file.digest, file.size, place, progress.add, stop)
            place.chmod(0o755 if file.executable else 0o644)
            sync(place)

        transfer.in_parallel(one, files)
        if os.path.lexists(target):
            raise Refused(f"{target}: exists, expected nothing there; move it away, and pull again")
        partial.rename(target)
    return files
