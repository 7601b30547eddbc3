"""What a file holds, by SHA-256, read once: the memo answers until the file may have changed.

A memo speaks of one state of one file: its inode, size, and the times of its last write (mtime) and
of its last change of any kind (ctime, which no program can set back).  Any edit, even one that
restores size and mtime, has another stamp, and is read anew.
"""

import contextlib
import functools
import hashlib
import json
import os
import stat
import time
from pathlib import Path

CHUNK = 1 << 20  # bytes
TICK = 20_000_000  # ns; two edits closer than a kernel tick (4 or 10 ms) can share a stamp
COARSE = 2_000_000_000  # ns; the same on file systems that count seconds
BESIDE = Path(".ingot/store")  # in the working folder, when the store is read-only
TENSORS = ".tensors"  # the other identity of a checkpoint's shard: see weights.py
KINDS = ("", TENSORS)
ORCHESTRATOR = ".snakemake_timestamp"  # Snakemake's own, in each directory output


def home() -> Path:
    """The store: INGOT_STORE, or else below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return _resolved(os.environ.get("INGOT_STORE") or f"{cache}/ingot/store")


@functools.cache
def _resolved(path: str) -> Path:
    return Path(path).resolve()


def stamp(state: os.stat_result) -> str:
    return f"{state.st_ino:x}-{state.st_size:x}-{state.st_mtime_ns:x}-{state.st_ctime_ns:x}"


def stamp_of(path: Path | str) -> str | None:
    """The stamp of a file, following links; None when there is no such file."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stamp(state) if stat.S_ISREG(state.st_mode) else None


def known(path: Path | str, kind: str = "") -> str | None:
    """The digest of a file if it is on record for its present state; nothing is read."""
    found = stamp_of(path)
    return found and recall(found, kind)


def recall(found: str, kind: str = "") -> str | None:
    """The digest of the file that has stamp `found`; `kind` is that of another identity of it."""
    name = f"{found}{kind}"
    if name in _here:
        return _here[name]
    for store in (home(), BESIDE):
        try:
            digest = _memo(store, name).read_text()
        except OSError:
            continue
        if len(digest) > 64:  # shorter: the disk was full as it was written
            _here[name] = digest
            return digest
    return None


def remember(found: str, digest: str, kind: str = "") -> None:
    """Put it on record that the file of stamp `found` holds `digest`; a memo lost costs a reading."""
    if int(found.rpartition("-")[2], 16) % 1_000_000_000 == 0:
        return  # a file system that counts seconds, and may let programs set them
    name = f"{found}{kind}"
    _here[name] = digest
    for store in (home(), BESIDE):
        memo = _memo(store, name)
        partial = memo.with_name(f".{memo.name}.{os.getpid()}.partial")
        try:
            memo.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(digest)
            partial.replace(memo)
            return
        except OSError:  # a full disk, a read-only store
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


_here: dict[str, str] = {}  # what this process knows, wherever it could write it down


def _memo(store: Path, name: str) -> Path:
    return store / "memo" / name.partition(".")[0][-9:-7] / name


def of(path: Path | str) -> str:
    """`sha256:<hex>` of a file, `tree:<hex>` of a folder; read only where no memo stands."""
    path = Path(path)
    return tree(path)[0] if path.is_dir() else _of_file(path)


def _of_file(path: Path) -> str:
    for _ in range(3):
        if digest := known(path):
            return digest
        before = settled(path)
        digest = f"sha256:{read(path)}"
        if stamp_of(path) == before:
            remember(before, digest)
            return digest
    raise OSError(f"{path}: changes while it is being read")


def settled(path: Path) -> str:
    """The stamp, once no edit of the same tick could share it.

    What a program wrote through a mapping gets its time when it is written back: hence the fsync.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        os.fsync(file.fileno())
    while True:
        state = path.stat()
        coarse = state.st_mtime_ns % 1_000_000_000 == 0 and state.st_ctime_ns % 1_000_000_000 == 0
        age = abs(time.time_ns() - state.st_ctime_ns)
        if age >= (COARSE if coarse else TICK):
            return stamp(state)
        time.sleep(TICK / 1e9)


def read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(folder: Path) -> tuple[str, list[dict]]:
    """The digest of a folder, and its entries sorted by path: file, link or empty folder."""
    entries: list[dict] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
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


def of_json(value) -> str:
    """SHA-256 of `value` in one spelling: sorted keys, no blanks."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


# Hexadecimal SHA-256 of files that this process wrote and hashed as it wrote them.
written: dict[Path, str] = {}


def finished(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`, and put its digest on record."""
    digest = written.pop(partial, None) or read(partial)
    before = partial.stat()
    partial.replace(final)
    vouch(final, before, f"sha256:{digest}")  # a rename changes ctime


def vouch(path: Path, before: os.stat_result, digest: str, kind: str = "") -> None:
    """Remember `digest` under the file's new stamp, unless more than its names changed."""
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        remember(stamp(after), digest, kind)


def link(source: Path, target: Path) -> None:
    """A hard link `target` of the file `source`, whose ctime changes by it; or a copy."""
    source = source.resolve()
    digests = {kind: known(source, kind) for kind in KINDS}
    before = source.stat()
    try:
        os.link(source, target)
    except OSError:  # across file systems, or where there are no links
        copy(source, target, digests[""])
        if digests[""]:
            remember(stamp_of(target), digests[""])
        return
    for kind, digest in digests.items():
        if digest:
            vouch(target, before, digest, kind)


def copy(source: Path, target: Path, digest: str | None = None) -> None:
    """Copy a file, hashing as it goes; an OSError when that is not `digest`."""
    found = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(CHUNK):
            found.update(data)
            writer.write(data)
    if digest and digest != f"sha256:{found.hexdigest()}":
        target.unlink()
        raise OSError(f"{source}: changed while it was copied")
