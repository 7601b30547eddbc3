"""A file as several layers: cut where its tensors begin, or by size.

By tensors, a fine-tune sends the tensors that it changed, and no more.  By size, it is within what the
registry takes.  The parts in the order of their names are the file: `cat FILE.part-*`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path

from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf
from ingot.formats.iree import irpa
from ingot.model.checkpoint import safetensors

TENSORS, NONE = "tensors", ""  # how a file is cut, beside a number of bytes
SMALL = 64 << 10  # bytes; tensors below it go together
MOST = 9_000  # parts of a file: a manifest of them is below 4 MiB
LIMITS = {"ghcr.io": 8 << 30}  # bytes of a layer; it takes 10 GB, within ten minutes
READ = 1 << 20
NAME = "{name}.part-{number:05}"


@dataclass(frozen=True)
class Part:
    """Bytes `offset` to `offset + size` of a file."""

    source: Path
    offset: int
    size: int

    def open(self) -> FileIO:
        file = self.source.open("rb", buffering=0)
        file.seek(self.offset)
        return file


def rule_for(host: str, asked: str) -> str:
    """How files are cut for a registry: as asked, or at its own limit."""
    return asked or str(LIMITS.get(host.partition(":")[0], NONE))


def cut(path: Path, name: str, rule: str) -> list[Part]:
    """The parts of a file by a rule; none where it stays whole.  `name` says its format."""
    size = path.stat().st_size
    if rule == TENSORS:
        starts = list(_joined(tensors(path, name)))
    elif rule:
        most = int(rule)
        starts = list(range(0, size, most))
    else:
        return []
    if len(starts) > MOST:
        raise Refused(f"{name}: {len(starts)} parts, expected {MOST} at most; cut it by size")
    if len(starts) < 2:
        return []
    ends = [*starts[1:], size]
    return [Part(path, start, end - start) for start, end in zip(starts, ends, strict=True)]


def tensors(path: Path, name: str) -> list[int]:
    """Where the tensors of a file begin; nowhere in a file that has none."""
    if name.endswith(".gguf"):
        found: Iterable = gguf.read(path)[1]
    elif name.endswith(".irpa"):
        found = irpa.read(path)[1]
    elif name.endswith(".safetensors"):
        found = safetensors.read_header(path).values()
    else:
        return []
    return sorted({one.offset for one in found})


def _joined(starts: list[int]) -> Iterator[int]:
    """The beginning of the file, then of each run of tensors of at least SMALL bytes."""
    last = 0
    yield 0
    for start, end in pairwise([*starts, 1 << 63]):
        if start and (start - last >= SMALL or end - start >= SMALL):
            last = start
            yield start


def digests(parts: list[Part]) -> list[str]:
    """sha256:<hex> of each; reads the file."""
    found = []
    for part in parts:
        one, left = hashlib.sha256(), part.size
        with part.open() as file:
            while left and (data := file.read(min(READ, left))):
                one.update(data)
                left -= len(data)
        found.append(f"sha256:{one.hexdigest()}")
    return found
