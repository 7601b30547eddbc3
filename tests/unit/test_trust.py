"""The store believes no record or name for its own sake."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from conftest import KEY
from ingot.base import digest
from ingot.base.refused import Refused
from ingot.store import form, gc, leases
from ingot.store.blobs import Blobs
from ingot.store.fsck import fsck
from ingot.store.records import Action, Store
from ingot.store.usage import usage


def forge(store, change, tree=True):
    """Rewrite the record as somebody else might, its digests right."""
    (pointer,) = store.root.glob("actions/rule/*")
    manifest = json.loads(pointer.read_bytes().partition(b"\n")[2])
    outputs = json.loads(manifest["annotations"]["ingot.outputs"])
    change(outputs[0], manifest)
    if tree and isinstance(outputs[0].get("entries"), list):
        bare = [{k: v for k, v in e.items() if k != "size"} for e in outputs[0]["entries"]]
        outputs[0]["digest"] = f"tree:{digest.of_json(bare)}"
    manifest["annotations"]["ingot.outputs"] = json.dumps(outputs)
    text = json.dumps(manifest).encode()
    pointer.write_bytes(f"sha256:{hashlib.sha256(text).hexdigest()}".encode() + b"\n" + text)
    return pointer


def entry(output, name):
    return next(one for one in output["entries"] if one["path"] == name)


def rename(to):
    def change(output, manifest):
        entry(output, "tool")["path"] = to
        for layer in manifest["layers"]:
            title = layer["annotations"]["org.opencontainers.image.title"]
            layer["annotations"]["org.opencontainers.image.title"] = title.replace(
                "f/tool", f"f/{to}"
            )

    return change


FORGED = {
    "absolute path": rename("/etc/cron.d/x"),
    "path upwards": rename("../.bashrc"),
    "path through its own link": rename("here/x"),
    "path below a file": rename("deep/m/x"),
    "path with a NUL": rename("a\0b"),
    "digest that is a path": lambda o, m: entry(o, "tool").update(digest="sha256:/home/me/thesis"),
    "layers of other files": lambda o, m: m["layers"].pop(),
    "no layers": lambda o, m: m.update(layers=None),
    "entries that are no list": lambda o, m: o.update(entries={"a": 1}),
    "size that is a text": lambda o, m: entry(o, "tool").update(size="4"),
    "title that is a path": lambda o, m: o.update(title="../f"),
    "kind of a later version": lambda o, m: o.update(kind="volume"),
    "half of a character": lambda o, m: m.update(note="\ud800"),
    "no config": lambda o, m: m.pop("config"),
}


@pytest.mark.parametrize("fault", FORGED)
def test_a_forged_record_is_no_record_and_fsck_removes_it(fault, filled):
    assert len(list(filled.records())) == 1
    pointer = forge(filled, FORGED[fault])
    assert filled.lookup("rule", KEY) is None and not list(filled.records())
    usage(filled)
    gc.collect(filled, 30, {}, True)
    filled.reindex()
    assert fsck(filled)["damaged_records"] == [f"actions/rule/{KEY}"] and not pointer.exists()


def test_a_folders_digest_is_that_of_its_entries(filled):
    forge(filled, lambda o, m: entry(o, "tool").update(executable=True), tree=False)
    assert filled.lookup("rule", KEY) is None
    with pytest.raises(Refused, match="not those of its digest"):
        form._folder({"digest": "tree:" + "0" * 64, "entries": []})


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "sha256:/etc/passwd", "sha256:../x", "ab" * 32, ""]
)
def test_no_name_leads_out_of_the_store(name, filled, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with pytest.raises(Refused, match="not a digest, expected sha256: and 64 hex digits"):
        filled.has(name)
    with pytest.raises(Refused, match="not a digest"):
        Blobs().place(f"sha256:{victim}", tmp_path / "out")
    assert victim.read_text() == "mine"


def test_fifos_in_the_store_hang_nobody(filled):
    for place in (
        f"actions/rule/{'cd' * 32}",
        "leases/ab",
        "folders/ab",
        f"blobs/sha256/{'0' * 64}",
    ):
        (filled.root / place).parent.mkdir(exist_ok=True)
        os.mkfifo(filled.root / place)
    assert len(list(filled.records())) == 1 and not filled.has("sha256:" + "0" * 64)
    list(leases.alive(filled)), list(leases.notes(filled))
    gc.collect(filled, 30, {}, True)
    usage(filled)
    assert f"actions/rule/{'cd' * 32}" in fsck(filled)["damaged_records"]


def test_an_index_of_another_form_comes_back(filled):
    (filled.root / "index.json").write_text('{"manifests": [{"digest": 5}]}')
    filled.index()
    (one,) = json.loads((filled.root / "index.json").read_bytes())["manifests"]
    assert one["digest"].startswith("sha256:")


def test_a_record_costs_one_line_of_the_index_whatever_the_store_holds(filled):
    before = (filled.root / "index.json").stat().st_ino
    outputs = [{**filled.take(Path("artifacts/f")), "title": "f"}]
    filled.record(Action("rule", "cd" * 32, {}, outputs, {}, {}))
    assert (filled.root / "index.json").stat().st_ino == before
    assert Store().prepare()  # what a killed run left is brought in by the next
    assert len(json.loads((filled.root / "index.json").read_bytes())["manifests"]) == 2
