"""A checkpoint that comes in pieces, each of which goes once every writer has had it.

`ingot stream` starts the steps that write from one checkpoint side by side, each told of a folder:

plan.json       the shards, and of each piece its shard, its first byte, and the one behind its last
shards/<name>   a shard's header and the pieces that are here; holes for all else
come            how many pieces came, which are gone again, how many shards are whole: of the hub's hash
writers/<name>  what that writer is done with, and until when it needs each piece
lost            a writer found that its file is gone: what it reported is worth nothing
wanted          the bytes that a writer of some ranks needs, where no others come

Each is written under another name and renamed, so that a reader sees one state.  A process may be killed
at any time: what it had reported is what the next goes on from.
"""

import ctypes
import fcntl
import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ingot.base import memo
from ingot.base.durable import sync

FOLDER, WRITER = "INGOT_STREAM", "INGOT_STREAM_WRITER"  # what a writer is told, and its name
SPOILT = 75  # exit status of what fetches: what came of a shard was not what the hub says
PAUSE = 0.02  # seconds between two looks
PUNCH = 0x03  # fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


@dataclass(frozen=True)
class Piece:
    """Bytes first..last of shard number `shard`: whole tensors."""

    shard: int
    first: int
    last: int


@dataclass
class Done:
    """What a writer is done with: so many passes, of which `durable` are on the disk.

    `until` says of each piece the last pass that reads it, -1 where none does.  `stale`: an earlier process
    said so, and this one may find that its file is gone: nothing is given up by such a report.
    """

    until: list[int]
    done: int = 0
    durable: int = 0
    boot: str = field(default_factory=memo.this_boot)
    stale: bool = False

    @property
    def kept(self) -> int:
        """Passes that nothing can have undone: after another start of the machine, those on the disk."""
        return self.done if self.boot == memo.this_boot() else self.durable


def folder() -> Path | None:
    """The folder of the checkpoint that comes in pieces, of a step that was told of one."""
    said = os.environ.get(FOLDER)
    return Path(said) if said else None


def place(path: Path) -> Path:
    """Where the checkpoint's file `path` is: of one that is not there, among the shards that come."""
    coming = folder()
    if coming is None or path.exists():
        return path
    found = coming / "shards" / path.name
    return found if found.exists() else path


def partial(path: Path, stream: str = "") -> Path | None:
    """The temporary name of output `path`, which a later writer goes on with; None: it starts with nothing.

    Of the stream of that name, or of the one that this step was told of.
    """
    coming = folder()
    name = stream or (coming.name if coming else "")
    return path.with_name(f".{path.name}.stream-{name}.partial") if name else None


def busy(stream: str) -> Path:
    """The lock that a stream and its steps hold, in the working folder: no stream removes it."""
    return Path(".ingot", f"stream-{stream}.busy")


def goes_on(partial: Path) -> bool | None:
    """Is it a temporary name of a stream that goes on?  None: it is of no stream."""
    found = re.search(r"\.stream-(\w+)\.partial$", partial.name)
    return locked(busy(found[1])) if found else None


def locked(lock: Path) -> bool:
    """Does anybody hold it now?"""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def forget() -> None:
    """This step has written nothing of what it reported: its file is gone, and comes again."""
    if coming := folder():
        (coming / "writers" / os.environ[WRITER]).unlink(missing_ok=True)


class Pieces:
    """The folder's plan, and how far it is."""

    def __init__(self, where: Path):
        self.where = where
        plan = read(where / "plan.json", {"shards": [], "pieces": []})
        self.shards: list[str] = plan["shards"]
        self.pieces = [Piece(*one) for one in plan["pieces"]]

    @property
    def come(self) -> dict[str, Any]:
        """How many pieces came, how many shards are whole, which pieces are gone again; in which boot."""
        return read(self.where / "come", {"pieces": 0, "whole": 0, "freed": [], "boot": ""})

    def tell(self, came: int, whole: int, freed: set[int]) -> None:
        said = {"pieces": came, "whole": whole, "freed": sorted(freed), "boot": memo.this_boot()}
        write(self.where / "come", said)

    def shard(self, number: int) -> Path:
        return self.where / "shards" / self.shards[number]

    def first_of(self, shard: int) -> int:
        """The first piece of a shard; of the one behind the last, the number of pieces."""
        return next(
            (n for n, one in enumerate(self.pieces) if one.shard >= shard), len(self.pieces)
        )

    def done(self, writer: int | str) -> Done | None:
        """What a writer is done with; None before it has said what it needs."""
        found = read(self.where / "writers" / str(writer), {})
        return Done(**found) if found else None

    def report(self, writer: int | str, done: Done, durable: bool = False) -> None:
        write(self.where / "writers" / str(writer), asdict(done), durable)

    def needed(self, piece: int, writers: list[Done]) -> bool:
        """Has any of them a pass to come that reads it?"""
        return any(one.until[piece] >= one.done for one in writers)

    def free(self, number: int) -> bool:
        """Give the disk back what a piece takes; False where the file system cannot."""
        piece = self.pieces[number]
        with self.shard(piece.shard).open("r+b") as file:
            return punch(file.fileno(), piece.first, piece.last - piece.first)

    def empty(self, shard: int) -> None:
        """Give back what all its pieces take, on any file system."""
        first = self.pieces[self.first_of(shard)].first
        os.truncate(self.shard(shard), first)
        self.stretch(shard)

    def stretch(self, shard: int) -> None:
        """Holes for all that a shard's file lacks of its size."""
        if spans := [one.last for one in self.pieces if one.shard == shard]:
            os.truncate(self.shard(shard), max(spans))


def want(spans: list[list]) -> None:
    """Say which bytes of the shards are needed; who fetches some alone waits for that.

    Each is a shard, the first byte, how many; how often, and how far it is from one to the next.
    """
    if coming := folder():
        write(coming / "wanted", {"spans": spans}, durable=True)


def wait_for(what) -> Any:
    """What `what()` gives, once that is true.  A step ends with its parent: entry.py."""
    while not (found := what()):
        time.sleep(PAUSE)
    return found


def read(path: Path, absent: Any) -> Any:
    """What was written; `absent` where nothing was, or a crash of the machine left it empty."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return absent


def write(path: Path, content: Any, durable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content))
    if durable:
        sync(new)
    new.replace(path)


def punch(file: int, first: int, count: int) -> bool:
    """Make a hole of `count` bytes from `first` on; False where the file system has none."""
    try:
        call = ctypes.CDLL(None).fallocate
    except (OSError, AttributeError):  # macOS
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call(file, PUNCH, first, count) == 0
