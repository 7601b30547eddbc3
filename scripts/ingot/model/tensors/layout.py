"""Where the parts of a file that is yet to be written lie: the same for every format."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Entries = TypeVar("Entries")


@dataclass(frozen=True)
class FileLayout(Generic[Entries]):
    """A file's `head` from offset 0, where each tensor's data go, and the size of the whole, in bytes."""

    head: bytes
    entries: Entries  # one per tensor, as the format describes it
    size: int
    texts: dict[int, bytes] = field(default_factory=dict)  # by offset, after the tensors
