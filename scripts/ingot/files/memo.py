"""Which digest a file had in one of its states: so that no file is read twice to learn it.

A memo speaks of one state of one file: its inode, size, and the times of its last write (mtime) and
of its last change of any kind (ctime, which no program can set back).  Any edit, even one that
restores size and mtime, has another stamp, and the file is read again.
"""

import contextlib
import functools
import os
import stat
from pathlib import Path

BESIDE = Path(".ingot/store")  # in the working folder, when the store is read-only
TENSORS = ".tensors"  # the other identity of a checkpoint's shard: see checkpoint/identity.py
KINDS = ("", TENSORS)


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


def vouch(path: Path, before: os.stat_result, digest: str, kind: str = "") -> None:
    """Remember `digest` under the file's new stamp, unless more than its names changed."""
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        remember(stamp(after), digest, kind)
