"""The files that no job makes: what each holds, or that nobody has read it yet."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ingot.base import digest, memo
from ingot.base.refused import Refused
from ingot.model.checkpoint import identity

LARGE = 64 << 20  # bytes; larger shards are not read just to find that nothing is known of them


class UnknownInput(Exception):
    """An input's content is not known."""


class NotBuiltYet(UnknownInput):
    """It will be, when the job that makes it is done."""


class Sources:
    """The files that no job makes, each read at most once, and only if the memo cannot answer."""

    def __init__(self):
        self.seen: dict[str, tuple[str, str]] = {}  # path: stamp, digest
        self.unread: dict[str, str] = {}  # path: stamp when we decided not to read it

    def digest(self, path: str, maybe_known: Callable[[str], bool]) -> str:
        """What the file or folder at `path` holds.

        UnknownInput for a large shard that has to be read, when `maybe_known(path)` says that no
        action on record can have read it: then the step will hash it as it reads it.
        """
        if path in self.seen:
            return self.seen[path][1]
        if not os.path.exists(path):
            raise UnknownInput(f"{path} is missing")
        if not (os.path.isfile(path) or os.path.isdir(path)):  # a FIFO would be waited for
            raise OSError(f"{path}: no plain file, expected one; put a copy of its content there")
        now = memo.stamp_of(path) or ""
        shard = path.endswith(".safetensors") and os.path.isfile(path)
        if (
            shard
            and not identity.known(path)
            and os.path.getsize(path) > LARGE
            and not maybe_known(path)
        ):
            self.unread[path] = now
            raise UnknownInput(f"{path} was not seen before")
        if path.endswith(".py"):
            _drop_bytecode(Path(path), memo.known(path) is not None)
        found = _shard(Path(path)) if shard else digest.of(path)
        self.seen[path] = (now, found)
        return found

    def unchanged(self, path: str) -> bool:
        """Is the file as it was when we looked first?"""
        if path not in self.seen:
            return self.unread.get(path) in (None, memo.stamp_of(path))
        stamp, found = self.seen[path]
        if not stamp:  # a folder
            return digest.of(path) == found
        return memo.stamp_of(path) == stamp


def _drop_bytecode(path: Path, seen: bool) -> None:
    """Python takes its cached bytecode for a file of the same size and second; we do not.

    Beside the file, whoever first sees a new stamp drops it; each user's own cache, each of its runs.
    """
    folders = [] if seen else [path.parent / "__pycache__"]
    if elsewhere := os.environ.get("PYTHONPYCACHEPREFIX"):
        folders.append(Path(elsewhere, *path.absolute().parent.parts[1:]))
    for cached in (one for folder in folders for one in folder.glob(f"{path.stem}.*.pyc")):
        with contextlib.suppress(OSError):
            cached.unlink()


def _shard(path: Path) -> str:
    try:
        return identity.of(path)
    except Refused:  # not a safetensors file: the step will say so
        return digest.of(path)
