"""Room on a disk for what is about to come."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.base.refused import Refused


@contextmanager
def room(target: Path, partial: Path, size: int) -> Iterator[None]:
    """Refused where `size` bytes, some of which may be in `partial` already, have no room beside `target`:
    before anything comes, or once the disk is full; what came stays, and the next pull resumes from it."""
    here = sum(path.stat().st_size for path in (partial, *partial.rglob("*")) if path.is_file())
    disk = shutil.disk_usage(target.parent)
    free = disk.free
    if disk.total and size - here > free:  # some file systems do not tell
        raise Refused(
            f"{target}: {_words(size)}, but {_words(free)} are free there; free some, or name another place"
        )
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refused(
            f"{target}: the disk is full, expected room for {_words(size)}; free some, and the same "
            f"command goes on with {partial}, or remove that"
        ) from None


def _words(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
