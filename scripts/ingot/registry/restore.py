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
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from threading import Event
from typing import Any, TypeVar
from unicodedata import normalize

from ingot.base.durable import sync
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.registry import modelpack, published, transfer
from ingot.registry.listed import Listed, record_of
from ingot.registry.reference import DIGEST
from ingot.registry.room import room

P = TypeVar("P", bound=PurePath)
MOST = 100_000  # files of an artifact
LONGEST, COMPONENT = 1024, 200  # bytes of a name, and of a part of it


@dataclass(frozen=True)
class File:
    """`parts` are the digests and sizes of a file that comes in several layers."""

    name: str
    digest: str
    size: int
    executable: bool
    parts: tuple[tuple[str, int], ...] = ()


def files_of(reference: str, manifest: dict[str, Any]) -> list[File]:
    """The files that a ModelPack manifest or a record names.  Refused: names that leave the folder, or come
    twice."""
    record = record_of(reference, manifest)
    found = _of_record(reference, record.outputs) if record else []
    for layer in manifest["layers"] if record is None else ():
        notes = layer.get("annotations", {})
        name = notes.get(modelpack.FILEPATH)
        if name is None or not layer["mediaType"].endswith(".raw"):
            raise Refused(
                f"{reference}: a layer of {layer['mediaType']}, expected raw files; pull it by another tool"
            )
        if not DIGEST.fullmatch(layer["digest"]):
            raise Refused(f"{reference}: {layer['digest']!r} is no sha256 digest; publish it again")
        if whole := notes.get(modelpack.PART_OF):
            part, size = (layer["digest"], layer["size"]), layer["size"]
            digest = notes.get(modelpack.WHOLE, "")
            if found and found[-1].name == whole and found[-1].parts and found[-1].digest == digest:
                last = found.pop()
                found.append(replace(last, size=last.size + size, parts=(*last.parts, part)))
            else:
                found.append(File(whole, digest, size, False, (part,)))
            continue
        found.append(File(name, layer["digest"], layer["size"], _executable(notes)))
    parts = [
        str(_part(PurePosixPath(file.name), number))
        for file in found
        for number in range(len(file.parts))
    ]
    _stay_inside(reference, [*(file.name for file in found), *parts])
    return found


def _of_record(reference: str, outputs: list[dict]) -> list[File]:
    for one in outputs[0].get("entries", ()):
        if "digest" not in one:
            raise Refused(
                f"{reference}: {one['path']!r} is a link or an empty folder, expected files; not taken"
            )
    return [
        File(one["path"], one["digest"], one["size"], one.get("executable", False))
        for one in published.files(outputs[0], outputs)
    ]


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
            mine = False
            with suppress(FileNotFoundError):
                mine = lock.stat().st_ino == os.fstat(file.fileno()).st_ino
            if mine:
                try:
                    yield target.with_name(f".{target.name}.{name}.coming")
                finally:
                    lock.unlink(missing_ok=True)
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
    size = sum(file.size for file in files)
    progress = Progress(f"pulling {target.name}", size)
    with coming(target, " ".join([digest, *sorted(only)])) as partial, room(target, partial, size):

        def one(wanted: tuple[str, int, Path], stop: Event) -> None:
            digest, size, place = wanted
            place.parent.mkdir(parents=True, exist_ok=True)
            transfer.pull(connection, digest, size, place, progress.add, stop)

        places = {file: partial if single else partial / file.name for file in files}
        wanted = [
            (digest, size, _part(places[file], number) if file.parts else places[file])
            for file in files
            for number, (digest, size) in enumerate(file.parts or ((file.digest, file.size),))
            if not _joined(places[file], file)
        ]
        transfer.in_parallel(one, wanted)
        for file, place in places.items():
            if file.parts and not _joined(place, file):
                _join(reference, file, place)
            place.chmod(0o755 if file.executable else 0o644)
            sync(place)
        if os.path.lexists(target):
            raise Refused(f"{target}: exists, expected nothing there; move it away, and pull again")
        partial.rename(target)
    return files


def _part(place: P, number: int) -> P:
    return place.with_name(f".{place.name}.part-{number:05}")


def _joined(place: Path, file: File) -> bool:
    """Were the parts put together by a pull that was cut later?  The name is given last."""
    return bool(file.parts) and place.exists()


def _join(reference: str, file: File, place: Path) -> None:
    """The parts put together, each deleted once it is; the whole is checked against its digest."""
    found, whole = hashlib.sha256(), _part(place, 0)
    with whole.open("r+b") as out:
        while data := out.read(transfer.BLOCK):
            found.update(data)
        for number in range(1, len(file.parts)):
            with _part(place, number).open("rb") as source:
                while data := source.read(transfer.BLOCK):
                    out.write(data)
                    found.update(data)
            _part(place, number).unlink()
    if f"sha256:{found.hexdigest()}" != file.digest:
        whole.unlink()
        raise Refused(
            f"{reference}: the parts of {file.name} are not {file.digest[:19]}; not taken"
        )
    sync(whole)
    whole.rename(place)
