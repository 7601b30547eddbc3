"""Room on a disk for what is about to come."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.files.atomic import remove
from ingot.refused import Refused


@contextmanager
def room(target: Path, partial: Path, size: int) -> Iterator[None]:
    """Refused where `size` bytes, some of which may be in `partial` already, have no room beside `target`.

    Before anything comes; or once the disk is full, and then what came goes again.
    """
    here = sum(path.stat().st_size for path in (partial, *partial.rglob("*")) if path.is_file())
    free = shutil.disk_usage(target.parent).free
    if size - here > free:
        raise Refused(
            f"{target}: {_words(size)}, but {_words(free)} are free there; free some, or name another place"
        )
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remove(partial)
        raise Refused(
            f"{target}: the disk is full, expected room for {_words(size)}; free some, and try again"
        ) from None


def _words(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
