"""Byte ranges from file to file, a block at a time: memory does not grow with the model."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

BLOCK = 1 << 20  # bytes read at a time when they are only copied
CAST_BLOCK = 1 << 18  # and when they are cast: all intermediates of a block stay in the cache
THREADS = min(4, os.cpu_count() or 1)  # beyond four, the page cache is the limit


def in_threads(jobs: Iterable[Callable[[], None]]) -> None:
    """Run the jobs, `THREADS` at a time; the first error stops the others and is raised here."""
    source, lock, errors = iter(jobs), threading.Lock(), []

    def work() -> None:
        while not errors:
            try:
                with lock:
                    job = next(source, None)
                if job is None:
                    return
                job()
            except BaseException as error:  # SystemExit too: it is raised again below
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def allocate(file: int, size: int, path: Path) -> None:
    """Reserve `size` bytes of `path` at once, so that a full disk stops us before any work."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            os.truncate(file, size)  # a file system that cannot reserve
            return
        sys.exit(f"{path}: {size / 1e9:.2f} GB do not fit on its disk; free room or move artifacts")


def read_exactly(file: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill `buffer` from `offset`."""
    done = 0
    while done < len(buffer):
        count = os.preadv(file, [buffer[done:]], offset + done)
        if count == 0:
            sys.exit(f"{path}: ended at byte {offset + done}; it was cut short while being read")
        done += count


def write_exactly(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)


def copy_range(source: int, target: int, start: int, place: int, count: int) -> None:
    """`count` bytes at `start` to `place`; they do not pass through our memory where avoidable."""
    done = 0
    while done < count:
        step = _copy_some(source, target, start + done, place + done, count - done)
        if step == 0:
            sys.exit(f"input ended {count - done} bytes early; was it replaced while being read?")
        done += step


def _copy_some(source: int, target: int, start: int, place: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, min(count, 64 << 20), start, place)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        data = os.pread(source, min(count, BLOCK), start)  # between two kinds of file system
        write_exactly(target, memoryview(data), place)
        return len(data)
