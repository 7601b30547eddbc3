"""The store without Snakemake: blobs, leases, what gc keeps, how much there is."""

import os
import shutil
import time
from pathlib import Path

import pytest

from ingot.base import digest
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
