"""On the disk, not only in memory: what survives a power loss."""

import contextlib
import os
import stat
from pathlib import Path

SMALL = 1 << 20  # bytes; a smaller file is on the disk before its name stands


def sync(path: Path) -> None:
    """Wait until the file or folder at `path`, as it is now, is on the disk.  Links are followed."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_name(path: Path) -> None:
    """The same for the name `path`; nothing where a file system cannot."""
    with contextlib.suppress(OSError):
        sync(path.parent)


def regular_bytes(path: Path | str) -> bytes:
    """What the regular file at `path` holds; an OSError for a FIFO, which others would wait for."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as reader:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path}: not a regular file")
        return reader.read()
