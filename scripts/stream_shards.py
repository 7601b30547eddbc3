"""Fetch a hub model's shards in pieces, and free each once every writer has had it.  Runs in envs/hub.

A shard is hashed while it comes in.  Writers read its pieces before the hash is known, and put nothing in
place until that of each shard is the hub's.
"""

import os
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ingot.base import memo, pieces
from ingot.base.durable import sync
from ingot.base.options import step
from ingot.base.pieces import Done, Pieces
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.base.stream import write_exactly
from ingot.model.checkpoint.safetensors import HEADER_LIMIT, read_header
from ingot.model.hub.client import Retry
from ingot.model.hub.download import Download
from ingot.model.hub.listing import read_listing
from ingot.model.hub.ranges import Ranges
from ingot.model.tensors.dtypes import STORED

PART = 4  # of the window a piece is this part, or a tensor where that is larger
MOST = 4096  # pieces of a model, about: what is told of each is told of all, and experts are 40,000 tensors
HEAD = 1 << 16  # bytes of a shard that are asked for first: most headers are shorter


def stream_shards(
    listing: Annotated[Path, "by fetch_listing.py"],
    shards: Annotated[list[str], "names on the hub, in the order to fetch"],
    folder: Annotated[Path, "where the pieces come to"],
    writers: Annotated[list[str], "the names by which those report who read them"],
    window: Annotated[
        int, "bytes of pieces that may be here at once, or a thousandth of the model"
    ],
    backoff: Annotated[float, "seconds before the first retry"] = 1.0,
    some: Annotated[bool, "the bytes alone that the one writer says it wants"] = False,
) -> int:
    known = read_listing(listing)
    entries = {name: entry_of(known, name) for name in shards}
    Download.backoff = backoff
    sizes = [entry["size"] for entry in entries.values()]
    least, window = sized(window, sum(sizes))
    if Pieces(folder).shards != shards:
        plan(folder, known, entries, least)
    coming = Coming(Pieces(folder), writers, window)
    first = coming.resume()
    (folder / "ready").touch()
    if some:
        Few(coming, known, folder).fetch(first, backoff)
        return 0
    whole = Progress(f"{known['hub']}, {len(shards)} shards", sum(sizes))
    whole.resume(sum(sizes[:first]))
    try:
        for number, name in list(enumerate(shards))[first:]:
            sink, entry, retry = Sink(coming, number), entries[name], Retry(name, backoff)
            Download(known, name, entry, entry["sha256"], sink, Part(whole)).run(retry)
            coming.whole(number)
    except SpoiltError as reason:
        print(reason, file=sys.stderr)
        return pieces.SPOILT
    return 0


def entry_of(known: dict, name: str) -> dict:
    entry = known["files"].get(name, {})
    if "sha256" not in entry:
        raise Refused(
            f"{known['hub']}/{name}: no SHA-256 in the hub's listing, expected that of a large file; "
            "build it by snakemake"
        )
    return entry


def sized(window: int, total: int) -> tuple[int, int]:
    """The least bytes of a piece, and the window, of a model of `total` bytes."""
    least = max(window // PART, total // MOST)
    return least, max(window, PART * least)


def plan(folder: Path, known: dict, entries: dict[str, dict], least: int) -> None:
    """The shards' headers, each in a file with holes for all else, and what the pieces are."""
    found: list[tuple[int, int, int]] = []
    for path in (folder / "come", *folder.glob("writers/*")):  # of another plan
        path.unlink(missing_ok=True)
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    for number, (name, entry) in enumerate(entries.items()):
        path = folder / "shards" / name
        source = Download(known, name, entry, entry["sha256"], Nothing())
        head = source.first(HEAD)
        (length,) = struct.unpack("<Q", head[:8].ljust(8, b"\0"))
        if length > min(entry["size"] - 8, HEADER_LIMIT):
            raise Refused(
                f"{known['hub']}/{name}: a header of {length} bytes in a file of {entry['size']}, "
                "expected a safetensors file"
            )
        head = head if len(head) >= 8 + length else source.first(8 + length)
        with path.open("wb") as file:
            file.write(head[: 8 + length])
            file.truncate(entry["size"])
        sync(path)
        found += [(number, *span) for span in spans(path, 8 + length, entry["size"], least)]
    pieces.write(folder / "plan.json", {"shards": [*entries], "pieces": found}, durable=True)


def spans(path: Path, start: int, size: int, least: int) -> list[tuple[int, int]]:
    """A shard's pieces, of `least` bytes or more: the first byte of each, and the one behind its last."""
    found, first = [], start
    for tensor in sorted(read_header(path, STORED).values(), key=lambda one: one.offset):
        last = tensor.offset + tensor.nbytes
        if last > first and (last - first >= least or last == size):
            found.append((first, last))
            first = last
    return found


class SpoiltError(Exception):
    """What came of a shard has to come again, from its first byte on."""


class Part:
    """The progress of one shard, counted in that of all."""

    def __init__(self, whole: Progress):
        self.whole, self.done = whole, 0

    def add(self, count: int) -> None:
        self.done += count
        self.whole.add(count)

    def resume(self, count: int) -> None:
        self.add(count - self.done)


class Nothing:
    """A file that nothing is written to."""

    def seek(self, *_) -> None:
        pass

    def tell(self) -> int:
        return 0


class Coming:
    """Which pieces are here, and which of them every writer has had."""

    def __init__(self, parts: Pieces, writers: list[str], window: int):
        self.parts, self.writers, self.window = parts, writers, window
        self.came = self.shards = 0
        self.held: set[int] = set()  # pieces that take room
        self.freed: set[int] = set()

    def resume(self) -> int:
        """The shard to go on with: the first that is not known to be whole, or of which a piece is lost.

        Nobody keeps what was written of it: a byte of that may have been another than the hub's.
        """
        parts, came = self.parts, self.parts.come
        for number in range(len(parts.shards)):
            parts.stretch(number)
        found = {n: parts.done(n) for n in self.writers}
        unknown = Done([len(parts.pieces)] * len(parts.pieces))
        shard = came["whole"]
        gone = {*came["freed"]} if came["boot"] == memo.this_boot() else {*range(len(parts.pieces))}
        while True:
            first = parts.first_of(shard)
            known = [one or unknown for one in found.values()]
            kept = [min(one.kept, first) for one in known]
            lost = [
                n
                for n in sorted(gone)
                if n < first
                and any(one.until[n] >= its for one, its in zip(known, kept, strict=True))
            ]
            if not lost:
                break
            shard = parts.pieces[lost[0]].shard
        for number, its in zip(found, kept, strict=True):
            if one := found[number]:
                kept_of = {"done": its, "durable": min(one.durable, its), "boot": memo.this_boot()}
                parts.report(number, replace(one, stale=True, **kept_of))
        self.came, self.shards, self.freed = first, shard, {n for n in gone if n < first}
        self.held = {*range(first)} - self.freed
        self._tell()
        return shard

    def free(self) -> int:
        """Give back what every writer has had; passes that the slowest has behind it."""
        known = [self.parts.done(number) for number in self.writers]
        if not all(one and not one.stale for one in known):
            return 0
        spent = {one for one in self.held if not self.parts.needed(one, known)}
        if spent:
            self.held -= spent
            self.freed |= spent
            self._tell()
            whole = [piece for piece in spent if not self.parts.free(piece)]
            for shard in {self.parts.pieces[piece].shard for piece in whole}:
                all_of = range(self.parts.first_of(shard), self.parts.first_of(shard + 1))
                if self.freed.issuperset(all_of):
                    self.parts.empty(shard)
        return min(one.done for one in known)

    def room(self, piece: int) -> bool:
        """May `piece` come now?  When little else is here, or no writer can go on without it."""
        behind = self.free()
        bytes_of = sum(one.last - one.first for n in self.held if (one := self.parts.pieces[n]))
        return bytes_of <= self.window or behind >= piece

    def arrived(self, piece: int) -> None:
        self.held.add(piece)
        self.freed.discard(piece)
        self.came = piece + 1
        self._tell()

    def whole(self, shard: int) -> None:
        self.shards = shard + 1
        self._tell()

    def _tell(self) -> None:
        self.parts.tell(self.came, self.shards, self.freed)


class Few:
    """Those bytes of the shards that a writer wants.  No hash covers them: what is written is checked."""

    def __init__(self, coming: Coming, known: dict, folder: Path):
        self.coming, self.known, self.ranges = coming, known, Ranges()
        wanted = pieces.wait_for(lambda: pieces.read(folder / "wanted", None))["spans"]
        self.wanted = {
            name: [one[1:] for one in wanted if one[0] == name] for name in coming.parts.shards
        }
        self.sizes = {
            name: sum(c * often for _, c, often, _ in its) for name, its in self.wanted.items()
        }
        self.progress = Progress(
            f"{known['hub']}, the bytes of its ranks", sum(self.sizes.values())
        )

    def fetch(self, first: int, backoff: float) -> None:
        """Those of the shards from number `first` on, piece by piece."""
        names = self.coming.parts.shards
        self.progress.resume(sum(self.sizes[name] for name in names[:first]))
        for number, name in list(enumerate(names))[first:]:
            self._shard(number, name, Retry(name, backoff))
            self.coming.whole(number)
        whole = sum(self.known["files"][name]["size"] for name in names)
        print(
            f"{self.known['hub']}: {sum(self.sizes.values()) / 1e6:,.1f} of {whole / 1e6:,.1f} MB wanted, "
            f"{self.ranges.came / 1e6:,.1f} MB came in {self.ranges.requests} requests",
            file=sys.stderr,
        )

    def _shard(self, shard: int, name: str, retry: Retry) -> None:
        parts, entry = self.coming.parts, self.known["files"][name]
        source = Download(self.known, name, entry, entry["sha256"], Nothing(), self.progress)
        with parts.shard(shard).open("r+b", buffering=0) as file:

            def write(data: memoryview, offset: int) -> None:
                write_exactly(file.fileno(), data, offset)

            for number in range(parts.first_of(shard), parts.first_of(shard + 1)):
                piece = parts.pieces[number]
                found = [  # what is wanted of a tensor lies in one piece
                    (first + n * far, first + n * far + count)
                    for first, count, often, far in self.wanted[name]
                    if piece.first <= first < piece.last
                    for n in range(often)
                ]
                pieces.wait_for(lambda number=number: self.coming.room(number))
                self.ranges.fetch(source, found, write, retry)
                self.progress.add(sum(last - first for first, last in found))
                self.coming.arrived(number)


class Sink:
    """The file of a shard, as a download writes it: each piece is told of once its last byte is there."""

    def __init__(self, coming: Coming, shard: int):
        self.coming, self.at = coming, 0
        self.path = coming.parts.shard(shard)
        self.file = self.path.open("r+b", buffering=0)
        first = coming.parts.first_of(shard)
        self.left = list(range(first, coming.parts.first_of(shard + 1)))
        self.told = False  # of any piece

    def seek(self, *_) -> None:
        pass

    def tell(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            end = self.at + len(view)
            if self.left:
                number = self.left[0]
                piece = self.coming.parts.pieces[number]
                if self.at == piece.first:
                    pieces.wait_for(lambda: self.coming.room(number))  # noqa: B023
                end = min(end, piece.first if self.at < piece.first else piece.last)
            some, view = view[: end - self.at], view[end - self.at :]
            if self.left and self.at >= self.coming.parts.pieces[self.left[0]].first:
                os.pwrite(self.file.fileno(), some, self.at)
            elif os.pread(self.file.fileno(), len(some), self.at) != some:
                (self.coming.parts.where / "plan.json").unlink()
                raise SpoiltError(f"{self.path.name}: its header is not the one that came first")
            self.at = end
            if self.left and end == piece.last:
                self.coming.arrived(self.left.pop(0))
                self.told = True

    def flush(self) -> None:
        pass

    def truncate(self, _: int) -> None:
        """The download begins again: refused once a writer may have read of it."""
        if self.told:
            raise SpoiltError(f"{self.path.name}: what came is not what the hub says")
        self.at = 0


if __name__ == "__main__":
    step(stream_shards)
