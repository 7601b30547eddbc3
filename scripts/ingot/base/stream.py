"""Byte ranges from file to file, a block at a time: memory does not grow with the model."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.base import pieces
from ingot.base.durable import sync_name
from ingot.base.refused import Refused

BLOCK = 1 << 20  # bytes read at a time when they are gone through once
CAST_BLOCK = 1 << 18  # and when numpy casts them: all intermediates of a block stay in the cache
ZEROS = bytes(1 << 16)
THREADS = min(4, os.cpu_count() or 1)  # beyond four, the page cache is the limit


class Turns:
    """Lets threads do something one after another, in the order of their numbers 0, 1, 2, ..."""

    def __init__(self):
        self.next, self.stopped = 0, False
        self.changed = threading.Condition()

    @contextmanager
    def take(self, number: int) -> Iterator[None]:
        with self.changed:
            while self.next != number and not self.stopped:
                self.changed.wait()
        yield
        with self.changed:
            self.next = number + 1
            self.changed.notify_all()

    def stop(self) -> None:
        """Let all go: a number will not come, since its thread met an error."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class Digest:
    """SHA-256 of a file written in pieces, each handed over in its turn; holes are zeros."""

    def __init__(self):
        self.hash, self.done = hashlib.sha256(), 0

    def update(self, data, offset: int) -> None:
        if offset < self.done:
            raise ValueError(f"byte {offset} comes after byte {self.done}")
        self.skip_to(offset)
        self.hash.update(data)
        self.done += len(data)

    def skip_to(self, offset: int) -> None:
        while self.done < offset:
            step = min(offset - self.done, len(ZEROS))
            self.hash.update(ZEROS[:step])
            self.done += step


class Reading:
    """The same of a file whose pieces come in any order, some from an earlier process: read in the end."""

    def __init__(self, partial: Path):
        self.partial, self.hash = partial, hashlib.sha256()

    def update(self, data, offset: int) -> None:
        pass

    def skip_to(self, _: int) -> None:
        with self.partial.open("rb") as file:
            self.hash = hashlib.file_digest(file, "sha256")


class Output:
    """A file of known size that threads write in pieces, hashed as the pieces pass by.

    The pieces are hashed in the order of their tickets, which must be that of their offsets; but where the
    checkpoint itself comes in pieces.
    """

    def __init__(self, partial: Path, size: int, path: Path):
        self.partial, self.size, self.tickets, whole = partial, size, 0, pieces.folder() is None
        self.turns, self.hashed = Turns(), Digest() if whole else Reading(partial)
        if not whole and not partial.exists():
            pieces.forget()
        start = os.O_TRUNC if whole else 0
        self.file = os.open(partial, os.O_RDWR | os.O_CREAT | start, 0o644)
        try:
            allocate(self.file, size, path)
        except BaseException:
            self.close()
            raise

    def ticket(self) -> int:
        """The next piece's number; drawn where the pieces are handed out, one after another."""
        self.tickets += 1
        return self.tickets - 1

    def write(self, ticket: int, data, offset: int) -> None:
        write_exactly(self.file, memoryview(data), offset)
        with self.turns.take(ticket):
            self.hashed.update(data, offset)

    def write_last(self, ticket: int, parts: Iterable, offset: int) -> None:
        """Write parts, one behind the other, that are known once all before them are written."""
        with self.turns.take(ticket):
            for piece in parts:
                data = memoryview(piece)
                write_exactly(self.file, data, offset)
                self.hashed.update(data, offset)
                offset += len(data)

    def put(self, data, offset: int) -> None:
        """Write a piece while no thread does."""
        write_exactly(self.file, memoryview(data), offset)
        self.hashed.update(data, offset)

    def finish(self) -> str:
        """The SHA-256 of the whole file."""
        self.hashed.skip_to(self.size)
        return self.hashed.hash.hexdigest()

    def sync(self) -> None:
        """Wait until what was written is on the disk, and the temporary name."""
        os.fdatasync(self.file)
        sync_name(self.partial)

    def close(self) -> None:
        os.close(self.file)


def in_threads(
    jobs: Iterable[Callable[[], None]], turns: Iterable[Turns] = (), count: int = THREADS
) -> None:
    """Run the jobs, `count` at a time; the first error stops the others and is raised here.

    They start in order, so that a thread that waits for its turn waits for jobs already started.
    """
    source, lock, errors = iter(jobs), threading.Lock(), []

    def work(at_work: threading.Lock) -> None:
        with at_work:
            while not errors:
                try:
                    with lock:
                        job = next(source, None)
                    if job is None:
                        return
                    job()
                except BaseException as error:  # raised again below
                    errors.append(error)
                    for turn in turns:
                        turn.stop()

    locks = [threading.Lock() for _ in range(count)]
    threads = [threading.Thread(target=work, args=(at_work,)) for at_work in locks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt: no job may outlive the files it works on
        errors.append(error)
        for turn in turns:
            turn.stop()
        for at_work in locks:  # not `join`, which a thread refuses if its `start` was interrupted
            with at_work:
                pass
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
        raise Refused(
            f"{path}: {size / 1e6:,.1f} MB do not fit on the disk; free some space, or move artifacts"
        ) from None


def read_exactly(file: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill `buffer` from `offset`."""
    done = 0
    while done < len(buffer):
        count = os.preadv(file, [buffer[done:]], offset + done)
        if count == 0:
            raise Refused(
                f"{path}: ended at byte {offset + done}; it was cut short while being read"
            )
        done += count


def write_exactly(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)


def buffer_of(local: threading.local, size: int) -> memoryview:
    """This thread's buffer, grown when a piece is larger than any before."""
    if getattr(local, "buffer", None) is None or len(local.buffer) < size:
        local.buffer = memoryview(bytearray(size))
    return local.buffer[:size]
