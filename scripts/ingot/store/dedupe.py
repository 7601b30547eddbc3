"""Files of one size that hold equal blocks share them on the disk, where the file system can: XFS, btrfs.

A fine-tune is its base but for some tensors, in every format that lays both out alike: rank sets, IRPA,
TensorRT-LLM, safetensors, ONNX.  Each stays a file of its own.  The kernel compares what is to be shared
once more, so nothing can be shared that is not equal: ioctl_fideduperange(2).
"""

import errno
import fcntl
import itertools
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ingot.base import digest, memo
from ingot.base.durable import SMALL
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.store.blobs import Blobs

BLOCK = 64 << 10  # bytes that are compared at once; a multiple of every file system's block
MOST = 16 << 20  # bytes of one call, as Linux has it
SAMPLES = 32  # blocks of two files, of which one at least is equal, or they are not read
FIDEDUPERANGE = 0xC0189436
CALL, RESULT = (
    struct.Struct("=QQHHI"),
    struct.Struct("=qQQiI"),
)  # struct file_dedupe_range, and its _info
CANNOT_SHARE = "its file system cannot share blocks of two files, expected XFS or btrfs"
CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV)


def dedupe(store: Blobs) -> dict:
    """Let the blobs share what is equal of them.  Refused: a file system that cannot.

    `bytes_shared` counts what is shared now, also what was before.
    """
    sizes = defaultdict(list)
    for path in sorted(store.blobs.glob("*"), key=lambda path: path.name):
        if (size := path.stat().st_size) >= SMALL:
            sizes[size].append(path)
    pairs = [pair for paths in sizes.values() for pair in paired(paths)]
    progress = Progress("comparing", sum(path.stat().st_size for _, path in pairs))
    shared = sum(share(store, first, path, progress) for first, path in pairs)
    return {"store": str(store.root), "files": len(pairs), "bytes_shared": shared}


def paired(paths: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Each file with the first before it that it has blocks of: ranks of a set are of one size, too."""
    first: list[Path] = []
    for path in paths:
        if other := next((one for one in first if alike(one, path)), None):
            yield other, path
        else:
            first.append(path)


def alike(one: Path, other: Path) -> bool:
    """Is any of a few blocks of two files of one size the same?"""
    size = one.stat().st_size
    with one.open("rb") as a, other.open("rb") as b:
        for number in range(SAMPLES):
            a.seek(size * number // SAMPLES // BLOCK * BLOCK)
            b.seek(a.tell())
            if a.read(BLOCK) == b.read(BLOCK):
                return True
    return False


def share(store: Blobs, source: Path, target: Path, progress: Progress) -> int:
    """Let `target` share the blocks that are equal in `source`; how many bytes these are.

    btrfs frees no part of an extent while another is in use, and a file has extents of 128 MB: there, what
    differs is written to a copy of `source`, which takes the place of `target` if that has no second name.
    """
    with source.open("rb") as a, target.open("rb") as b:
        runs = [*equal_runs(a, b, progress)]
        if memo.kind_of(target) == "btrfs" and target.stat().st_nlink == 1:
            replaced(store, source, target, runs)
            return sum(last - first for first, last in runs)
        calls = (
            one_call(a.fileno(), b.fileno(), start, min(last - start, MOST), source)
            for first, last in runs
            for start in range(first, last, MOST)
        )
        return sum(calls)


def replaced(store: Blobs, source: Path, target: Path, runs: list[tuple[int, int]]) -> None:
    """Make `target` again: a clone of `source`, with what stands between the equal runs."""
    with store.temporary(target) as partial:
        if not digest.cloned(source, partial):
            raise Refused(f"{target.parent}: {CANNOT_SHARE}")
        with partial.open("r+b") as new, target.open("rb") as old:
            ends = [(0, 0), *runs, (target.stat().st_size, 0)]
            for (_, first), (last, _) in itertools.pairwise(ends):
                for start in range(first, last, BLOCK):
                    old.seek(start)
                    new.seek(start)
                    new.write(old.read(min(BLOCK, last - start)))
        if digest.read(partial) != target.name:
            raise OSError(f"{target}: changed while it was copied")
        partial.chmod(0o444)
        before = partial.stat()
    memo.vouch(target, before, f"sha256:{target.name}")


def equal_runs(a, b, progress: Progress) -> Iterator[tuple[int, int]]:
    """The first bytes of runs of equal blocks of two files of one size, and those behind their last."""
    place, began = 0, None
    while one := a.read(BLOCK):
        if one == b.read(BLOCK):
            began = place if began is None else began
        elif began is not None:
            yield began, place
            began = None
        place += len(one)
        progress.add(len(one))
    if began is not None:
        yield began, place


def one_call(source: int, target: int, start: int, count: int, named: Path) -> int:
    """Share bytes start..start + count; how many are shared now: none where one of them was written to."""
    call = bytearray(CALL.pack(start, count, 1, 0, 0) + RESULT.pack(target, start, 0, 0, 0))
    try:
        fcntl.ioctl(source, FIDEDUPERANGE, call)
    except OSError as error:
        status = -(error.errno or 0)
    else:
        _, _, done, status, _ = RESULT.unpack_from(call, CALL.size)
    if -status in CANNOT:
        raise Refused(f"{named.parent}: {CANNOT_SHARE}")
    if status < 0:
        raise OSError(-status, os.strerror(-status), str(named))
    return done if status == 0 else 0
