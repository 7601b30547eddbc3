"""What files and folders hold, by SHA-256; each read once, since a memo answers until it changes."""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import time
from pathlib import Path

from ingot.base import memo
from ingot.base.durable import SMALL, sync

CHUNK = 1 << 20  # bytes
COARSE = 2_000_000_000  # ns; the same on file systems that count seconds
FICLONE = (
    0x40049409  # ioctl of linux/fs.h: the same blocks under another name, until one is written to
)
ORCHESTRATOR = ".snakemake_timestamp"  # Snakemake's own, in each directory output


def of(path: Path | str) -> str:
    """`sha256:<hex>` of a file, `tree:<hex>` of a folder; read only where no memo stands."""
    path = Path(path)
    return tree(path)[0] if path.is_dir() else _of_file(path)


def _of_file(path: Path) -> str:
    for _ in range(3):
        if digest := memo.known(path):
            return digest
        before = settled(path)
        digest = f"sha256:{read(path)}"
        if memo.stamp_of(path) == before:
            memo.remember(before, digest, durable=True)
            return digest
    raise OSError(f"{path}: changes while it is being read")


def settled(path: Path) -> str:
    """The stamp, once no edit of the same tick could share it, and the file is on the disk.

    What a program wrote through a mapping gets its time when it is written back, too.
    """
    with contextlib.suppress(OSError):
        sync(path)
    while True:
        state = path.stat()
        coarse = state.st_mtime_ns % 1_000_000_000 == 0 and state.st_ctime_ns % 1_000_000_000 == 0
        age = abs(time.time_ns() - state.st_ctime_ns)
        if age >= (COARSE if coarse else memo.TICK):  # two edits within one tick can share a stamp
            return memo.stamp(path, state)
        time.sleep(memo.TICK / 1e9)


def read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_from_disk(path: Path) -> str:
    """The same past the page cache, which may hold what the disk does not."""
    with from_disk(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_disk(path: Path) -> io.BufferedReader:
    file = path.open("rb")
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def tree(folder: Path) -> tuple[str, list[dict]]:
    """The digest of a folder, and its entries sorted by path: file, link or empty folder."""
    entries: list[dict] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise OSError(f"{str(path)!a}: its name is not UTF-8; rename it") from None
        if path.is_symlink():
            entries.append({"path": name, "link": str(path.readlink())})
        elif path.is_dir():
            if not any(path.iterdir()):
                entries.append({"path": name, "folder": True})
        elif not path.is_file():
            raise OSError(f"{path}: neither a file, a folder nor a link; remove it")
        elif name != ORCHESTRATOR:
            executable = bool(path.stat().st_mode & 0o100)
            entries.append({"path": name, "executable": executable, "digest": _of_file(path)})
    return f"tree:{of_json(entries)}", entries


NAME = re.compile(r"sha256:[0-9a-f]{64}")


def of_json(value) -> str:
    """SHA-256 of `value` in one spelling: sorted keys, no blanks."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def finished(partial: Path, final: Path, sha256: str | None = None) -> None:
    """Rename `partial` to `final`, and put its digest on record: `sha256`, or that of a reading.

    A small file is on the disk before it has its name; of a large one the driver sees to it.
    """
    digest = sha256 or read(partial)
    before = partial.stat()
    if before.st_size <= SMALL:
        sync(partial)
    partial.replace(final)
    memo.vouch(final, before, f"sha256:{digest}")  # a rename changes ctime


def link(source: Path, target: Path) -> None:
    """A hard link `target` of the file `source`, whose ctime changes by it; or a copy, where no link can
    be or onnx reads the folder of `source`: it takes a file of two names for an attack."""
    alone = any(source.parent.glob("*.onnx"))
    source = source.resolve()
    digests = {kind: memo.known(source, kind) for kind in memo.KINDS}
    before = source.stat()
    try:
        if alone:
            raise OSError("a copy is wanted")
        os.link(source, target)
    except OSError:  # across file systems, or where there are no links
        copy(source, target, digests[""])
        if digests[""]:
            memo.remember(memo.stamp_of(target), digests[""])
        return
    for kind, digest in digests.items():
        if digest:
            memo.vouch(target, before, digest, kind)


class TwiceError(Exception):
    """A copy would take the bytes of its source again."""


def copy(source: Path, target: Path, digest: str | None = None, twice: bool = True) -> None:
    """A file of its own: it shares the blocks of `source` where the file system can and `digest` is known
    of it; else copied, hashing as it goes, and an OSError when that is not `digest`.

    TwiceError where it would be copied and its bytes may not lie there `twice`.
    """
    if digest and memo.known(source) == digest and cloned(source, target):
        if f"sha256:{read(target)}" != digest:
            target.unlink()
            raise OSError(f"{source}: does not hold what it did")
        return
    if not twice:
        raise TwiceError(str(source))
    found = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(CHUNK):
            found.update(data)
            writer.write(data)
    if digest and digest != f"sha256:{found.hexdigest()}":
        target.unlink()
        raise OSError(f"{source}: changed while it was copied")


def cloned(source: Path, target: Path) -> bool:
    """Make a file of its own that shares the blocks of `source`; False where the file system cannot."""
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer, FICLONE, reader.fileno())
        except OSError:  # ext4, or another file system
            return False
    return True
