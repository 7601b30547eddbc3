"""Byte ranges of a hub file: which a rank needs, what is asked for, and which answers are taken."""

import contextlib
import hashlib
import random
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import shard_irpa
from ingot.base.refused import Refused
from ingot.driver.commands.rank import Set
from ingot.formats.iree.tensor_parallel import Cut
from ingot.model.checkpoint import wanted
from ingot.model.hub import ranges
from ingot.model.hub.client import BrokenTransferError

FILE = random.Random(1).randbytes(3 << 20)
SOME = [(n * 4096, n * 4096 + 500) for n in range(300)]


class Server:
    """Answers for many ranges in one request, or as `answers` says of (the ranges, how many asked)."""

    def __init__(self):
        self.asked, self.addresses, self.lock = [], 0, threading.Lock()
        self.answers = lambda spans, _: many(spans)

    def address(self):
        self.addresses += 1
        return f"https://a/{self.addresses}", {}

    @contextlib.contextmanager
    def get(self, address, headers):
        words = headers["Range"].removeprefix("bytes=").split(",")
        spans = [(int(a), int(b) + 1) for a, b in (one.split("-") for one in words)]
        with self.lock:
            self.asked.append((address, spans))
            count = len(self.asked)
        status, said, body = self.answers(spans, count)
        yield SimpleNamespace(status_code=status, headers=said, iter_raw=lambda: iter([body]))


def part(first, last, said="", data=None):
    said = said or f"bytes {first}-{last - 1}/{len(FILE)}"
    return f"\r\n--x y\r\ncontent-RANGE: {said}\r\n\r\n".encode() + (data or FILE[first:last])


def many(spans, *parts):
    """The answer of a server for many ranges; for one."""
    if len(spans) == 1:
        return one(*spans[0])
    body = b"".join(parts or [part(*span) for span in spans]) + b"\r\n--x y--\r\n"
    return 206, {"Content-Type": 'multipart/byteranges; boundary="x y"'}, body


def one(first, last):
    said = {"Content-Range": f"bytes {first}-{last - 1}/{len(FILE)}"}
    return 206, said, FILE[first:last]


@pytest.fixture
def server(monkeypatch):
    found = Server()
    monkeypatch.setattr(ranges, "asked", found.get)
    monkeypatch.setattr(ranges.session, "install", lambda: None)
    return found


def fetched(server, wanted=SOME, tries=3):
    """What was written; refused after so many tries without progress."""
    out = bytearray(len(FILE))

    class Retry:
        failures = 0

        def progressed(self):
            self.failures = 0

        def run(self, action):
            while True:
                try:
                    return action()
                except BrokenTransferError as error:
                    self.failures += 1
                    if self.failures == tries:
                        raise Refused(str(error)) from None

    def write(data, offset):
        out[offset : offset + len(data)] = data

    source = SimpleNamespace(
        known={"hub": "org/m"}, name="m.safetensors", size=len(FILE), address=server.address
    )
    how = ranges.Ranges()
    how.fetch(source, wanted, write, Retry())
    for first, last in wanted:
        assert out[first:last] == FILE[first:last], first
    return how, out


def test_a_request_asks_for_many_ranges_and_no_more(server):
    how, out = fetched(server)
    assert [len(spans) for _, spans in server.asked] == [100, 100, 100]
    assert not any(out[500:4096]), "nothing of what lies between"
    assert how.requests == 3 and server.addresses == 1


def test_a_server_that_gives_the_whole_file_or_the_first_range_is_asked_for_each(server):
    for answer in ((200, {}, FILE), one(*SOME[0]), (416, {}, b""), (206, {}, FILE)):
        server.__init__()
        server.answers = lambda spans, _, answer=answer: (
            answer if len(spans) > 1 else one(*spans[0])
        )
        how, _ = fetched(server, tries=6)
        assert [len(spans) for _, spans in server.asked].count(1) == len(server.asked) - 1
        assert how.several is False
        gaps = sum(last - first for _, spans in server.asked[1:] for first, last in spans)
        assert gaps == SOME[-1][1], "with what is between, of less than 64 kB"


def test_parts_may_be_merged_and_come_in_any_order(server):
    near = [(n * 550, n * 550 + 500) for n in range(90)]

    def merged(spans, _):
        low, middle = spans[0], spans[len(spans) // 2]
        return many(spans, part(middle[0], spans[-1][1]), part(low[0], middle[0]))

    server.answers = merged
    fetched(server, near)
    assert len(server.asked) == 1


def test_an_answer_of_much_more_than_was_asked_for_is_not_held(server):
    wide = [(0, 100), ((3 << 20) - 100, 3 << 20)]
    server.answers = lambda spans, _: (
        many(spans, part(0, len(FILE))) if len(spans) > 1 else one(*spans[0])
    )
    how, _ = fetched(server, wide)
    assert how.several is False and how.came == 200


WRONG = {
    "a part is missing": lambda spans: many(spans, *[part(*span) for span in spans[1:]]),
    "the last is cut": lambda spans: (*many(spans)[:2], many(spans)[2][:-200]),
    "of another file": lambda spans: many(spans, part(*spans[0], f"bytes 0-499/{len(FILE) + 1}")),
    "not asked for": lambda spans: many(spans, part(len(FILE) - 500, len(FILE))),
    "of another length": lambda spans: many(spans, part(*spans[0], data=b"x" * 400)),
    "says no range": lambda spans: many(spans, b"\r\n--x y\r\nA: b\r\n\r\n" + FILE[:500]),
    "no end": lambda spans: (*many(spans)[:2], bytes(1 << 23)),
    "nothing": lambda spans: (206, {}, b""),
    "a part that ends before it begins": lambda spans: many(
        spans, part(40, 1, f"bytes 40-0/{len(FILE)}")
    ),
    "too many parts": lambda spans: many(spans, *[part(*spans[0]) for _ in range(200)]),
    "no boundary": lambda spans: (206, {"Content-Type": "multipart/byteranges"}, bytes(900)),
    "busy": lambda spans: (503, {}, b""),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_answer_is_asked_for_again_and_never_taken(server, fault):
    server.answers = lambda spans, count: WRONG[fault](spans) if count == 2 else many(spans)
    fetched(server)
    assert server.addresses == 2
    server.answers = lambda spans, _: WRONG[fault](spans)
    with pytest.raises(Refused):
        fetched(server)


def test_an_address_that_has_ended_is_asked_for_again(server):
    server.answers = lambda spans, count: (403, {}, b"") if count == 2 else many(spans)
    how, _ = fetched(server)
    assert server.addresses == 2 and how.several
    server.answers = lambda spans, _: (403, {}, b"")
    with pytest.raises(Refused, match="HTTP 403"):
        fetched(server)


def test_a_server_that_answers_for_many_no_more_is_asked_for_each(server):
    """Behind one name there may be several servers; or the answers for many ranges are broken."""
    for answer in (lambda: (200, {}, FILE), lambda: (503, {}, b""), lambda: (206, {}, b"")):
        server.__init__()
        server.answers = lambda spans, count, answer=answer: (
            many(spans) if len(spans) == 1 or count == 1 else answer()
        )
        how, _ = fetched(server, tries=6)
        assert how.several is False


def test_what_never_comes_does_not_keep_what_can(server):
    server.answers = lambda spans, _: (503, {}, b"") if spans[0] == SOME[100] else many(spans)
    with pytest.raises(Refused):
        fetched(server)
    assert {spans[0] for _, spans in server.asked} == {SOME[0], SOME[100], SOME[200]}
    assert len(server.asked) <= 6


def test_a_long_range_comes_in_several_requests(server):
    fetched(server, [(5, len(FILE) - 7)])
    assert [last - first for _, [(first, last)] in server.asked] == [2 << 20, (1 << 20) - 12]


def test_a_rank_needs_its_rows_or_its_part_of_each_row():
    """Of three matrices of six rows and four columns, at bytes 10, 106 and 202."""
    whole = np.arange(24, dtype=np.uint32).reshape(6, 4)
    tensors = {
        name: SimpleNamespace(
            shape=(6, 4), nbytes=96, offset=10 + 96 * n, path=Path("a/s.safetensors")
        )
        for n, name in enumerate(("R", "C", "W"))
    }
    cuts = [Cut("r", "F32", (6, 4), 0), Cut("c", "F32", (6, 4), 1), Cut("w", "F32", (6, 4), None)]
    rows = SimpleNamespace(tensors=tensors, coming=SimpleNamespace(place=tensors))
    file = bytes(10) + whole.tobytes() * 3
    for rank, parts in ((0, [whole[:3], whole[:, :2], whole]), (1, [whole[3:], whole[:, 2:]])):
        needs = shard_irpa.needs(cuts, {"r": "R", "c": "C", "w": "W"}, 2, [rank])
        for (_, first, count, often, far), part in zip(
            wanted.spans(rows, needs), parts, strict=True
        ):
            found = [file[first + n * far : first + n * far + count] for n in range(often)]
            assert b"".join(found) == part.tobytes()


def test_a_set_is_named_by_its_ending():
    irpa, trtllm = (
        Set("artifacts/M_tp8.irpa", Path("to")),
        Set("a/M_tp2.f32.trtllm-ckpt", Path("to")),
    )
    assert [str(irpa.rank(3)), str(irpa.about())] == ["to/M_tp8.rank3.irpa", "to/M_tp8.irpa"]
    folder = "to/M_tp2.f32.trtllm-ckpt"
    assert str(trtllm.rank(1)) == f"{folder}/rank1.safetensors"
    assert str(trtllm.about()) == f"{folder}/config.json"
    with pytest.raises(Refused, match="expected a set of ranks"):
        Set("artifacts/M.gguf", Path("to"))


def test_what_describes_another_set_is_refused(tmp_path):
    known = hashlib.sha256(b"root").hexdigest()
    wanted.hold(tmp_path / "M_tp2.irpa", b"root", known)
    wanted.hold(tmp_path / "M_tp2.irpa", b"root", "")
    with pytest.raises(Refused, match=r"M_tp2\.irpa: its SHA-256 would be .*, the record says"):
        wanted.hold(tmp_path / "M_tp2.irpa", b"other", known)
    with pytest.raises(Refused, match="no rank 2, expected 0 to 1"):
        wanted.ranks(tmp_path, [2], 2)
    with pytest.raises(Refused, match="expected it of `ingot rank` alone"):
        wanted.ranks(tmp_path, [1], 2)
