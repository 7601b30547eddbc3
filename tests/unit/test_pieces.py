"""A checkpoint that comes in pieces: what is due when, what is freed, and where a killed stream goes on."""

import hashlib
import json
import struct

import pytest

import stream_shards
from ingot.base import memo, pieces, stream
from ingot.base.atomic import partial_of
from ingot.base.pieces import Done, Pieces
from ingot.base.refused import Refused
from ingot.base.stream import Output
from ingot.model.checkpoint.arrivals import Arrivals
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.in_turn import Found, in_turn
from ingot.parity.scaled_weights import Scaled
from ingot.store import locks

PLAN = {"shards": ["a", "b"], "pieces": [[0, 8, 20], [0, 20, 30], [1, 8, 50]]}


@pytest.fixture
def folder(tmp_path):
    for name, size in (("a", 30), ("b", 50)):
        (tmp_path / "shards").mkdir(exist_ok=True)
        (tmp_path / "shards" / name).write_bytes(bytes(size))
    pieces.write(tmp_path / "plan.json", PLAN)
    return tmp_path


def tensor(folder, name, shard, first, count):
    return Tensor(name, "U8", (count,), folder / "shards" / shard, first, count)


def tensors(folder):
    found = [("t", "a", 8, 12), ("u", "a", 20, 10), ("v", "b", 8, 2), ("w", "b", 10, 40)]
    return {one[0]: tensor(folder, *one) for one in found}


def coming(folder, writers=("0",), window=1000):
    return stream_shards.Coming(Pieces(folder), [*writers], window)


def all_here(folder):
    Pieces(folder).tell(3, 2, set())


def test_what_is_made_of_several_tensors_is_due_once_the_last_of_them_is_here(folder):
    all_here(folder)
    found = Arrivals(folder, "0", tensors(folder))
    for n, names in enumerate((["t"], ["u", "t"], ["w", "u"], ["another"])):
        found.note(n, names)
    assert found.turns == {0: 0, 1: 1, 2: 2, 3: 0}
    assert [found.now for _ in found.passes([])] == [None, 0, 1, 2]
    assert Pieces(folder).done("0").until == [1, 2, 2], "the passes that read a piece last"
    assert Pieces(folder).done("0").done == 3


def test_what_was_not_asked_for_in_the_first_pass_may_be_gone(folder):
    all_here(folder)
    found = Arrivals(folder, "0", tensors(folder))
    with pytest.raises(Refused, match="asked for in pass 0"):
        for _ in found.passes([]):
            if found.now is not None:
                found.note("late", ["t"])


def test_a_writer_goes_on_behind_the_passes_that_it_is_done_with(folder):
    all_here(folder)
    Pieces(folder).report("0", Done([0, 1, 2], 2, 2))
    found = Arrivals(folder, "0", tensors(folder))
    assert [found.now for _ in found.passes([])] == [None, 2]


def test_a_writer_ends_once_every_shard_is_the_hubs(folder, monkeypatch):
    def now(what):
        if not (found := what()):
            raise TimeoutError
        return found

    monkeypatch.setattr(pieces, "wait_for", now)
    Pieces(folder).tell(3, 1, set())
    with pytest.raises(TimeoutError):
        [*Arrivals(folder, "0", tensors(folder)).passes([])]
    assert Pieces(folder).done("0").done == 3, "it had all, and went no further"
    Pieces(folder).tell(3, 2, set())
    assert [*Arrivals(folder, "0", tensors(folder)).passes([])]


@pytest.fixture
def writer(folder, monkeypatch):
    """This process is writer "0" of the stream."""
    monkeypatch.setenv(pieces.FOLDER, str(folder))
    monkeypatch.setenv(pieces.WRITER, "0")


def test_what_a_killed_one_found_is_known_to_the_next(folder, writer):
    Pieces(folder).report("0", Done([0, 1, 2], 1))
    found = Found()
    assert Pieces(folder).done("0") is None, (
        "nothing lies there: what was reported is worth nothing"
    )
    found.add("t", {"a": 1})
    found.add("u", {"a": 2})
    found.add("t", {"a": 3})  # of a shard that was spoilt on its way, and came again
    found.sync()
    Pieces(folder).report("0", Done([0, 1, 2], 2))
    found.file.truncate(found.path.stat().st_size - 3)  # killed as it wrote
    again = Found()
    assert again.tensors == {"t": {"a": 1}, "u": {"a": 2}} and Pieces(folder).done("0").done == 2
    again.add("v", {"a": 4})
    assert Found().tensors == {**again.tensors, "v": {"a": 4}}


def test_a_look_waits_for_all_that_its_values_are_made_of(folder, writer):
    all_here(folder)
    t, u, v, w = tensors(folder).values()
    scaled = Scaled(t.name, "F8_E4M3", (3, 4), t.path, t.offset, t.nbytes, w, (1, 1))
    done = []
    looks = [(lambda n=n: done.append((n, Pieces(folder).done("0").done)), needs) for n, needs in (
        ("plain", [u]), ("scales", [scaled]), ("both", [t, v]), ("none", []),
    )]  # fmt: skip
    in_turn(looks, [], 1)
    assert done == [("none", 0), ("plain", 1), ("scales", 2), ("both", 2)]
    assert Pieces(folder).done("0").until == [2, 1, 2]


def test_a_writer_whose_file_is_gone_does_not_go_on_in_an_empty_one(folder, monkeypatch):
    """Its first passes would be missing: zeros, for weights."""
    Pieces(folder).tell(3, 2, {0})
    Pieces(folder).report("0", Done([0, 1, 2], 2, 2))
    monkeypatch.setenv(pieces.FOLDER, str(folder))
    monkeypatch.setenv(pieces.WRITER, "0")
    monkeypatch.setattr(stream, "allocate", lambda *_: (_ for _ in ()).throw(Refused("no room")))
    with pytest.raises(Refused, match="no room"):
        Output(folder / "partial", 10, folder / "final")
    monkeypatch.undo()
    assert Pieces(folder).done("0") is None and (folder / "partial").exists()
    found = Arrivals(folder, "0", tensors(folder))
    with pytest.raises(Refused, match="is gone"):
        for _ in found.passes([]):
            pass
    assert (folder / "lost").exists()
    assert coming(folder).resume() == 0, "the next begins with the first piece"


def test_a_shard_that_was_cut_short_as_its_room_was_given_back_has_its_size_again(folder):
    (folder / "shards/a").write_bytes(bytes(8))
    coming(folder).resume()
    assert (folder / "shards/a").stat().st_size == 30


def test_what_a_crash_of_the_machine_left_empty_is_as_if_it_had_not_been(folder):
    parts = Pieces(folder)
    parts.tell(3, 2, {0})
    parts.report("0", Done([0, 1, 2], 3, 3))
    for name in ("come", "writers/0"):
        (folder / name).write_text("")
    assert coming(folder).resume() == 0 and parts.come["pieces"] == 0
    (folder / "plan.json").write_text("")
    assert Pieces(folder).shards == [], "it is planned again"


def test_a_step_leaves_what_a_stream_writes_unless_the_stream_has_ended(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / ".ingot").mkdir()
    left = pieces.partial(folder / "x.gguf", "abc")
    left.touch()
    with locks.locked(pieces.busy("abc")), partial_of(folder / "x.gguf"):
        assert left.exists()
    with partial_of(folder / "x.gguf"):
        assert not left.exists()


def test_a_tensor_outside_of_the_pieces_is_refused(folder):
    with pytest.raises(Refused, match="in no piece"):
        Arrivals(folder, "0", {"x": tensor(folder, "x", "a", 15, 10)})


def test_a_piece_goes_once_every_writer_has_had_it(folder):
    (folder / "shards/a").write_bytes(bytes(8) + b"x" * 22)
    found = coming(folder, "01")
    found.resume()
    for number in range(2):
        found.arrived(number)
    Pieces(folder).report("0", Done([0, 1, 2], 2))
    found.free()
    assert found.held == {0, 1}, "writer 1 has not said what it needs"
    Pieces(folder).report("1", Done([1, 1, 2], 1))
    found.free()
    assert found.held == {0, 1}, "piece 0 is read again in pass 1"
    Pieces(folder).report("1", Done([1, 1, 2], 2))
    found.free()
    assert not found.held
    assert (folder / "shards/a").read_bytes() == bytes(30), "holes"


def test_nothing_is_freed_by_what_an_earlier_writer_said(folder):
    """The one that follows it may find that its file is gone, and need all."""
    parts = Pieces(folder)
    parts.tell(2, 1, set())
    parts.report("0", Done([0, 1, 2], 2, 2))
    found = coming(folder)
    found.resume()
    found.free()
    assert found.held == {0, 1}
    parts.report("0", Done([0, 1, 2], 2, 2))
    found.free()
    assert not found.held


def test_a_shard_without_tensors_keeps_its_size(folder):
    (folder / "shards/c").write_bytes(bytes(10))
    pieces.write(folder / "plan.json", {**PLAN, "shards": ["a", "b", "c"]})
    coming(folder).resume()
    assert (folder / "shards/c").stat().st_size == 10


def test_a_piece_waits_for_room_but_not_for_writers_that_wait_for_it(folder):
    found = coming(folder, window=5)
    found.resume()
    Pieces(folder).report("0", Done([2, 1, 2], 0))
    found.arrived(0)
    assert not found.room(1), "12 bytes are here, 5 may be"
    Pieces(folder).report("0", Done([2, 1, 2], 1))
    assert found.room(1), "piece 0 is kept for pass 2, which needs the others"


def test_a_killed_stream_goes_on_at_the_shard_that_it_was_in(folder):
    """What was written of that one may rest on bytes that no hash was compared for."""
    parts = Pieces(folder)
    parts.tell(3, 1, {0, 1})
    parts.report("0", Done([0, 1, 2], 3, 2))
    assert coming(folder).resume() == 1
    assert (parts.done("0").done, parts.done("0").durable) == (2, 2)
    assert parts.done("0").stale, "nothing is freed by it until its writer says so again"
    assert parts.come["pieces"] == 2
    parts.tell(2, 0, {0})  # the first shard was not whole
    assert coming(folder).resume() == 0
    assert parts.done("0").done == 0


def test_a_whole_shard_comes_again_where_a_writer_lacks_what_is_gone_of_it(folder):
    parts = Pieces(folder)
    parts.tell(3, 2, {0, 1})
    parts.report("0", Done([0, 1, 2], 2))
    parts.report("1", Done([0, 1, 2], 0))  # its file was lost
    assert coming(folder, "01").resume() == 0
    assert [parts.done(n).done for n in "01"] == [0, 0]


def test_after_another_start_of_the_machine_only_what_was_on_the_disk_counts(folder):
    parts = Pieces(folder)
    parts.tell(3, 1, {0})
    parts.report("0", Done([0, 1, 2], 2, 0))
    for name in ("come", "writers/0"):
        said = json.loads((folder / name).read_text())
        pieces.write(folder / name, {**said, "boot": "another"})
    assert coming(folder).resume() == 0
    parts.tell(3, 1, {0})
    parts.report("0", Done([0, 1, 2], 2, 2, boot="another"))
    assert coming(folder).resume() == 1, "the shard's passes are on the disk"


def test_what_comes_in_any_order_has_its_hash_all_the_same(folder, monkeypatch):
    monkeypatch.setenv(pieces.FOLDER, str(folder))
    monkeypatch.setenv(pieces.WRITER, "0")
    out = Output(folder / "partial", 8, folder / "final")
    out.write(0, b"cdef", 4)
    out.put(b"ab", 0)
    out.close()
    again = Output(folder / "partial", 8, folder / "final")
    assert (folder / "partial").read_bytes() == b"ab\0\0cdef"
    found = again.finish()
    again.close()
    assert found == hashlib.sha256(b"ab\0\0cdef").hexdigest()


def test_a_step_finds_the_shards_that_come_and_all_else_where_it_is(folder, monkeypatch):
    monkeypatch.setenv(pieces.FOLDER, str(folder))
    (folder / "hf").mkdir()
    (folder / "hf/config.json").write_text("{}")
    (folder / "hf/b").write_text("here")
    found = Checkpoint([folder / "hf" / name for name in ("config.json", "a", "b", "c")]).files
    assert found["a"] == folder / "shards/a" and found["b"] == folder / "hf/b"
    assert found["c"] == folder / "hf/c" and found["config.json"] == folder / "hf/config.json"


def test_pieces_are_whole_tensors(tmp_path):
    header = {
        name: {"dtype": "U8", "shape": [last - first], "data_offsets": [first, last]}
        for name, first, last in (
            ("b", 0, 3),
            ("a", 3, 4),
            ("c", 4, 20),
            ("d", 20, 21),
            ("e", 21, 21),
        )
    }
    text = json.dumps(header).encode()
    start = 8 + len(text)
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(text)) + text + bytes(21))
    found = stream_shards.spans(tmp_path / "x", start, start + 21, 4)
    assert [(first - start, last - start) for first, last in found] == [(0, 4), (4, 20), (20, 21)]


def test_a_model_of_forty_thousand_experts_comes_in_some_thousand_pieces():
    assert stream_shards.sized(128_000_000, 16_000_000_000) == (32_000_000, 128_000_000)
    least, window = stream_shards.sized(128_000_000, 688_000_000_000)
    assert 688_000_000_000 / least < 4100 and window == 4 * least < 688_000_000_000 / 1000


def test_a_spoilt_shard_is_not_begun_again_under_those_who_read_of_it(folder):
    found = coming(folder)
    found.resume()
    sink = stream_shards.Sink(found, 0)
    sink.write(bytes(15))
    sink.truncate(0)  # nobody was told of anything
    sink.write(bytes(8) + b"y" * 12)
    assert Pieces(folder).come["pieces"] == 1
    with pytest.raises(stream_shards.SpoiltError, match="not what the hub says"):
        sink.truncate(0)
    assert (folder / "shards/a").read_bytes()[8:20] == b"y" * 12
    other = stream_shards.Sink(found, 1)
    with pytest.raises(stream_shards.SpoiltError, match="header is not the one that came first"):
        other.write(b"other" * 10)
    assert Pieces(folder).shards == [], "it is planned again"
    assert memo.this_boot() == Pieces(folder).come["boot"]
