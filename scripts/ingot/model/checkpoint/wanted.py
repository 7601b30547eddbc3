"""Which bytes of a checkpoint some ranks need, where it comes in pieces: what fetches them is told."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from ingot.base import pieces
from ingot.base.refused import Refused
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import Tensor

Only = Annotated[list[int], "write these ranks alone: a stream brings what they need"]
Described = Annotated[str, "SHA-256 of what describes the set: refused at once where it is another"]
Part = tuple[str, int, int, int, int]  # tensor, first row, end row; of the columns part n of m
Span = list  # shard, first byte, bytes; how often, and bytes from one to the next


def ranks(target: Path, only: list[int], count: int) -> list[int]:
    """Those to write: all, or `only` some of a checkpoint that comes in pieces."""
    if odd := [n for n in only if not 0 <= n < count]:
        raise Refused(f"{target}: no rank {odd[0]}, expected 0 to {count - 1}")
    if only and pieces.folder() is None:
        raise Refused(f"{target}: --only {only[0]}, expected it of `ingot rank` alone")
    return sorted({*only}) or [*range(count)]


def hold(path: Path, content: bytes, described: str) -> None:
    """Refuse to go on where `content`, which describes the set, is not what the set's record says."""
    found = hashlib.sha256(content).hexdigest()
    if described and found != described:
        raise Refused(
            f"{path.name}: its SHA-256 would be {found}, the record says {described}; is it of this "
            "model, dtype and version of Ingot?"
        )


def tell(rows: Rows, parts: Iterable[Part]) -> None:
    """Say which bytes are read, before the first pass: of floats, since no set is made of others."""
    parts = [*parts]
    read = {(rows.tensors[name], first, end) for name, first, end, *_ in parts}
    rows.progress.total = sum((end - first) * width(one) for one, first, end in read)
    pieces.want([*spans(rows, parts)])


def spans(rows: Rows, parts: Iterable[Part]) -> Iterator[Span]:
    """Where the parts lie in the shards that come."""
    for name, first, end, part, of in parts:
        if name in rows.coming.place:
            tensor = rows.tensors[name]
            row = width(tensor)
            begin = tensor.offset + first * row + part * row // of
            whole = [row // of, end - first, row] if of > 1 else [(end - first) * row, 1, 0]
            yield [tensor.path.name, begin, *whole]


def width(tensor: Tensor) -> int:
    """The bytes of a row."""
    return tensor.nbytes // tensor.shape[0]
