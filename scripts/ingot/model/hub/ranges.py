"""Byte ranges of a hub file, by several requests at a time.

One request asks for many ranges where the server answers that (RFC 9110, multipart/byteranges).  Where it
does not, as object stores, ranges with little between them are asked for as one.
"""

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator

from ingot.base.refused import Refused
from ingot.base.stream import in_threads
from ingot.model.hub import session
from ingot.model.hub.client import HEALS, BrokenTransferError, Floor, Retry
from ingot.model.hub.download import Download, asked

Range = tuple[int, int]  # first byte, and the one behind the last
Batch = tuple[Range, ...]  # what one request asks for
Write = Callable[[memoryview, int], object]
AT_ONCE = 16  # requests
GAP = 1 << 16  # bytes that come in less time than a request of its own takes
MANY = 100  # ranges of a request: a server takes some 8 kB of header
MOST = 2 << 20  # bytes that a request asks for
ROOM = 1 << 10  # bytes of headers of each part of an answer, at most
ENDED = (401, 403, 410)  # HTTP statuses of an address whose time is over: the hub gives another
ENOUGH = 3  # tries in a row that failed, before each range is asked for alone


class OddError(Exception):
    """An answer of another kind than was asked for."""


class Ranges:
    """What a server does with many ranges in one request, where its files are, and what came of them."""

    def __init__(self):
        session.install()
        self.several: bool | None = None  # does it answer for many?  None: nobody has asked
        self.requests = self.came = 0
        self.lock = threading.Lock()
        self.addresses: dict[str, tuple[str, dict[str, str]]] = {}  # of files, until a try fails

    def fetch(self, source: Download, wanted: Iterable[Range], write: Write, retry: Retry) -> None:
        """Call write(bytes, offset) for all `wanted`, in any order and from several threads."""
        left = [*wanted]
        while left:  # once more where it turns out that each range is asked for alone
            batches = dict.fromkeys(batched(left, self.several is not False))
            retry.run(functools.partial(self._all, source, batches, write, retry))
            left = [one for batch in batches for one in batch]

    def _all(
        self, source: Download, batches: dict[Batch, None], write: Write, retry: Retry
    ) -> None:
        """One try for what is left of the batches, which go as they come.

        It returns with some left once the server has turned out not to answer for many ranges.
        """
        if source.name not in self.addresses:
            self.addresses[source.name] = source.address()

        def one(batch: Batch) -> None:
            try:
                self._one(source, batch, write)
            except BaseException:
                with self.lock:  # to the end: those that can come reset the count of failures
                    batches[batch] = batches.pop(batch)
                raise
            with self.lock:
                batches.pop(batch)
            retry.progressed()

        many = [batch for batch in batches if len(batch) > 1]
        try:
            if self.several is None and many:  # by one request: an answer may be the whole file
                one(many[0])
                self.several = True
            in_threads([functools.partial(one, batch) for batch in [*batches]], count=AT_ONCE)
        except (OddError, BrokenTransferError) as error:
            self.addresses.pop(source.name)
            odd = isinstance(error, OddError) or retry.failures >= ENOUGH
            if odd and many and self.several is not False:
                self.several = False
                return
            raise BrokenTransferError(str(error), getattr(error, "response", None)) from None

    def _one(self, source: Download, batch: Batch, write: Write) -> None:
        name = f"{source.known['hub']}/{source.name}"
        address, headers = self.addresses[source.name]
        span = ",".join(f"{first}-{end - 1}" for first, end in batch)
        with asked(address, headers | {"Range": f"bytes={span}"}) as answer:
            status = answer.status_code
            if status in (*HEALS, *ENDED):
                raise BrokenTransferError(f"HTTP {status}", answer if status in HEALS else None)
            if len(batch) == 1 and status == 200:
                raise Refused(
                    f"{name}: its server gives the whole file alone, expected a range of it; stream the "
                    "whole set by `ingot stream`"
                )
            if len(batch) == 1 and status != 206:
                raise Refused(
                    f"{name}: HTTP {status} for a range, expected 206; is HF_ENDPOINT a hub?"
                )
            kind = answer.headers.get("Content-Type", "")
            many = kind.lower().startswith("multipart/byteranges")
            if len(batch) > 1 and (status != 206 or not many):
                raise OddError(f"HTTP {status} for {len(batch)} ranges, {kind[:60]!r}")
            body = self._body(answer, batch)
        if many:
            found = multipart(body, kind, len(batch))
        else:
            found = [(answer.headers.get("Content-Range", ""), memoryview(body))]
        missing = [*batch]
        for said, data in found:
            first = placed(said, len(data), source.size, batch)
            write(data, first)
            end = first + len(data)
            missing = [one for one in missing if not first <= one[0] <= one[1] <= end]
        if missing:
            raise BrokenTransferError(f"bytes {missing[0][0]} to {missing[0][1]} did not come")

    def _body(self, answer, batch: Batch) -> bytearray:
        """What was asked for, and the headers of its parts; an answer of more is not taken."""
        most = sum(end - first for first, end in batch) + ROOM * (len(batch) + 1)
        floor, body = Floor(), bytearray()
        for data in answer.iter_raw():
            floor.add(len(data))
            body += data
            if len(body) > most:
                raise OddError(f"more than {most} bytes for {len(batch)} ranges")
        with self.lock:
            self.requests += 1
            self.came += len(body)
        return body


def placed(said: str, count: int, size: int, batch: Batch) -> int:
    """The first byte of what came, by its Content-Range: of this file, and among what was asked for."""
    numbers = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", said.strip())
    first, end = (int(numbers[1]), int(numbers[2]) + 1) if numbers else (-1, -1)
    right = numbers and numbers[3] in ("*", str(size)) and end - first == count
    if not right or not batch[0][0] <= first <= end <= batch[-1][1]:
        raise BrokenTransferError(f"Content-Range {said[:60]!r} of {count} bytes came")
    return first


def multipart(body: bytearray, kind: str, most: int) -> Iterator[tuple[str, memoryview]]:
    """What Content-Range says of each part of an answer, `most` at most, and its bytes."""
    named = re.search(r'boundary="?([^";]+)"?', kind)
    mark, at = b"--" + (named[1].strip().encode() if named else b""), 0
    for _ in range(most + 1):
        at = body.find(mark, at)
        if at < 0 or body.startswith(b"--", at + len(mark)):
            return
        end = body.find(b"\r\n\r\n", at, at + ROOM)
        head = body[at : max(end, at)].decode("latin-1")
        said = re.search(r"(?im)^content-range:\s*(bytes (\d+)-(\d+)/\S+)\s*$", head)
        if not said:
            raise BrokenTransferError("a part without a Content-Range came")
        first, count = end + 4, int(said[3]) + 1 - int(said[2])
        at = first + max(count, 0)
        yield said[1], memoryview(body)[first:at]
    raise BrokenTransferError(f"more than {most} parts came")


def joined(ranges: Iterable[Range], gap: int) -> Iterator[Range]:
    """The ranges in their order, those of at most `gap` bytes between them as one."""
    last: Range | None = None
    for first, end in sorted(ranges):
        if last and first <= last[1] + gap:
            last = (last[0], max(last[1], end))
            continue
        if last:
            yield last
        last = (first, end)
    if last:
        yield last


def batched(ranges: Iterable[Range], several: bool) -> Iterator[Batch]:
    """What each request asks for: at most MOST bytes; many ranges, or one with the gaps that it spans."""
    batch: list[Range] = []
    size = 0
    for first, end in joined(ranges, 0 if several else GAP):
        for start in range(first, end, MOST):
            one = (start, min(start + MOST, end))
            size += one[1] - one[0]
            if batch and (not several or len(batch) == MANY or size > MOST):
                yield tuple(batch)
                batch, size = [], one[1] - one[0]
            batch.append(one)
    if batch:
        yield tuple(batch)
