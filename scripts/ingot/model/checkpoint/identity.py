"""The identity of a checkpoint's shard: one SHA-256 per tensor, which any order of reading gives.

A converter reads a shard tensor by tensor, not from end to end; so it can name what it read without
reading it twice, and a later `ingot explain` can say which tensors differ.
"""

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path

from ingot.base import digest, memo, stream
from ingot.base.progress import Progress
from ingot.model.checkpoint.safetensors import read_header
from ingot.model.tensors.dtypes import STORED

KIND = memo.TENSORS  # of memo
SAMPLES, SAMPLE = 16, 4096  # blocks of a shard and their bytes, that tell two of one size apart


def of(path: Path) -> str:
    """`tensors:<hex>` of a shard."""
    for _ in range(3):
        if found := known(path):
            return found
        if found := ShardDigest(path).finish(Progress(f"reading {path.name}", path.stat().st_size)):
            return found
    raise OSError(f"{path}: changes while it is being read")


def known(path: Path | str) -> str | None:
    """The identity of a shard if it is on record for its present state; nothing is read."""
    return memo.known(path, KIND)


def sample(path: Path | str) -> str:
    """A digest of a few blocks: where it differs the shards differ, and nothing more is read."""
    size, found = Path(path).stat().st_size, hashlib.sha256()
    with Path(path).open("rb") as file:
        for number in range(SAMPLES):
            file.seek(size * number // SAMPLES)
            found.update(file.read(SAMPLE))
    return found.hexdigest()


class ShardDigest:
    """Collects the digests of one shard's tensors while somebody reads it."""

    def __init__(self, path: Path):
        self.path = path
        self.before = digest.settled(path)
        self.tensors = read_header(path, STORED)
        self.found: dict[str, str] = {}

    def finish(self, progress: Progress | None = None) -> str | None:
        """Read what nobody read, and put the shard on record; None when it changed meanwhile."""
        stream.in_threads(_jobs(self, progress))
        if memo.stamp_of(self.path) != self.before:
            return None
        size = self.path.stat().st_size
        document = {"size": size, "header": _header(self.path), "tensors": self.found}
        text = digest.canonical(document)
        name = hashlib.sha256(text).hexdigest()
        _keep(memo.home() / "tensors" / name, text)
        memo.remember(self.before, f"tensors:{name}", KIND, durable=True)
        return f"tensors:{name}"


def document(identity: str) -> dict | None:
    """The tensors' digests behind `tensors:<hex>`, if they are still on record."""
    try:
        return json.loads((memo.home() / "tensors" / identity.removeprefix("tensors:")).read_text())
    except (OSError, ValueError):
        return None


def _header(path: Path) -> str:
    with path.open("rb") as file:
        length = file.read(8)
        return hashlib.sha256(length + file.read(int.from_bytes(length, "little"))).hexdigest()


def _keep(place: Path, text: bytes) -> None:
    partial = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(text)
        partial.replace(place)
    except OSError:  # it only serves explanations
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _jobs(shard: ShardDigest, progress: Progress | None):
    def read(tensor) -> None:
        found, buffer = hashlib.sha256(), memoryview(bytearray(stream.BLOCK))
        with shard.path.open("rb") as file:
            for start in range(0, tensor.nbytes, stream.BLOCK):
                part = buffer[: min(stream.BLOCK, tensor.nbytes - start)]
                offset = tensor.offset + start
                stream.read_exactly(file.fileno(), part, offset, shard.path)
                found.update(part)
                if progress:
                    progress.add(len(part))
        shard.found[tensor.name] = found.hexdigest()

    for tensor in shard.tensors.values():
        if tensor.name not in shard.found:
            yield lambda tensor=tensor: read(tensor)
