"""The store without Snakemake: blobs, leases, what gc keeps, how much there is."""

import os
import shutil
import time
from pathlib import Path

import pytest

from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.commands.store import show_gc
from ingot.driver.release import shown
from ingot.store import gc, leases
from ingot.store.blobs import Blobs
from ingot.store.records import Action, Store
from ingot.store.usage import usage


@pytest.fixture
def filled(store, tmp_path, monkeypatch):
    """A store with one action, of a file and of a folder, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("artifacts/f").mkdir(parents=True)
    Path("artifacts/m.gguf").write_bytes(b"weights")
    Path("artifacts/f/tool").write_bytes(b"tool")
    Path("artifacts/f/tool").chmod(0o755)
    found = Store()
    assert found.prepare()
    outputs = [{**found.take(Path("artifacts") / name), "title": name} for name in ("m.gguf", "f")]
    found.record(Action("rule", "ab" * 32, {"rule": "rule"}, outputs, {}, {}))
    return found


def age(store):
    for pointer in store.root.glob("actions/*/*"):
        os.utime(pointer, (time.time() - 90 * 86400,) * 2)


def test_a_folder_comes_back_with_its_executable_bit(filled):
    (record,) = filled.records()
    filled.restore(record.outputs[1], Path("again"))
    assert Path("again/tool").read_bytes() == b"tool" and os.access("again/tool", os.X_OK)
    assert record.title == "m.gguf, f" and len(record.files) == 2


@pytest.mark.parametrize(
    "graph, twice, kept", [("", False, True), ("m.onnx", True, True), ("m.onnx", False, False)]
)
def test_a_disk_that_is_short_spares_the_copy_of_what_onnx_reads_alone(
    graph, twice, kept, store, tmp_path, monkeypatch
):
    """A store on another file system, where nothing can be a link, is given all else."""
    folder, data = tmp_path / "f", b"w" * (1 << 20)
    folder.mkdir()
    (folder / "weights").write_bytes(data)
    if graph:
        (folder / graph).write_bytes(b"graph")
    found = Store()
    assert found.prepare()
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("another disk")))
    monkeypatch.setattr(digest, "cloned", lambda *_: False)
    output = found.take(folder, twice)
    assert found.whole(output) == kept and output["size"] == len(data) + 5 * bool(graph)
    assert not list(found.blobs.glob(".*")), "nothing half-written"


def test_a_blob_that_is_not_what_its_name_says_is_set_aside(filled, capsys):
    (record,) = filled.records()
    blob = filled.blob(record.files[0])
    blob.chmod(0o644)
    blob.write_bytes(b"w3ights")
    assert not Blobs(filled.root).has(record.files[0])
    assert not blob.exists() and list(filled.root.glob("quarantine/*"))
    assert "does not hold what its name says" in capsys.readouterr().err
    assert not filled.whole(record.outputs[0]) and filled.whole(record.outputs[1])


def test_gc_keeps_what_a_lease_names_and_drops_the_rest(filled):
    age(filled)
    Path("artifacts/m.gguf").unlink()
    shutil.rmtree("artifacts/f")
    lease = leases.hold(filled, ["ab" * 32])
    assert [one["keys"] for one in leases.alive(filled)] == [["ab" * 32]]
    assert gc.collect(filled, 30, {}, False)["records_dropped"] == []
    lease.close()
    found = gc.collect(filled, 30, {}, False)
    assert found["records_dropped"] == ["m.gguf, f"] and found["bytes_freed"] > 0
    assert not list(filled.records())


def test_gc_keeps_what_an_artifact_points_to(filled):
    leases.hold(filled, []).close()
    age(filled)
    assert set(gc.in_folders(filled)) == {filled.take(Path("artifacts/m.gguf"))["digest"]}
    assert gc.collect(filled, 30, {}, True)["records_dropped"] == []


def test_gc_says_why_it_keeps_each_record(filled, tmp_path, capsys):
    """One in a working folder, made from another; one for a run, one named, one used lately."""
    leases.hold(filled, []).close()
    (record,) = filled.records()

    def more(key, text, inputs=()):
        (tmp_path / text).write_text(text)
        outputs = [{**filled.take(tmp_path / text), "title": text}]
        filled.record(Action("rule", key * 64, {"inputs": {"a": [*inputs]}}, outputs, {}, {}))
        return outputs[0]["digest"]

    base = more("a", "base")
    filled.record(Action("rule", record.key, {"inputs": {"a": base}}, record.outputs, {}, {}))
    for key, text in (("b", "named"), ("c", "of a run"), ("d", "of nobody"), ("e", "young")):
        more(key, text)
    age(filled)
    os.utime(filled.root / "actions/rule" / ("e" * 64))
    lease = leases.hold(filled, ["c" * 64])
    found = gc.collect(filled, 30, {"b" * 64: True}, True)
    lease.close()
    assert found["records_dropped"] == ["of nobody"] and found["records_kept"] == 5
    show_gc(found)
    assert (
        capsys.readouterr()
        .out.strip()
        .endswith(
            "5 records kept: 1 for a run, 1 in a working folder, 1 named, 1 that others were made from, "
            "1 used in the last 30 days"
        )
    )
    empty = gc.collect(filled, 0, {}, True)
    assert sum(empty["kept_because"].values()) == empty["records_kept"] == 2


def test_show_says_of_a_damaged_artifact_that_it_is_damaged(filled):
    place = Path("artifacts/m.gguf")
    assert shown.of_file(filled, place)["artifact"] == "m.gguf, f"
    place.resolve().chmod(0o644)
    place.resolve().write_bytes(b"w3ights")
    with pytest.raises(Refused, match=r"m\.gguf: damaged in .*; `ingot store fsck` sets it aside"):
        shown.of_file(filled, place)
    place.resolve().write_bytes(b"weights")
    next(filled.records()).path.unlink()
    with pytest.raises(Refused, match="on no record"):
        shown.of_file(filled, place)


def test_usage_counts_each_blob_once(filled):
    found = usage(filled)
    (row,) = found["rows"]
    assert (row["model"], row["kind"], row["bytes"]) == (
        "m",
        "gguf",
        len(b"weights") + len(b"tool"),
    )


def test_a_read_only_store_says_so_and_still_answers(filled, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not filled.prepare() and len(list(filled.records())) == 1
