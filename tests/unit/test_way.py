"""What stands in a working folder, and how it came to be: by the store's records alone."""

import os
from pathlib import Path

import pytest

from ingot.store import leases, way
from ingot.store.records import Action, Store


@pytest.fixture
def made(folder):
    """made(path, text, key, reads) is the record of an action that wrote it here."""
    Path("artifacts").mkdir()
    store = Store()
    assert store.prepare()

    def make(path, text, key, reads=(), fields=None, asked=True):
        Path(path).unlink(missing_ok=True)
        Path(path).write_text(text)
        key = (key * 64)[:64]
        output = {**store.take(Path(path)), "title": Path(path).name}
        about = {"writes": [path], "reads": {one: ["rule", (k * 64)[:64]] for one, k in reads}}
        about |= {"recipe": f"recipe of {path}", "inputs": {"source": "recipe:x:0"}}
        fields = fields or {"rule": "rule", "inputs": {"source": "sha256:x"}}
        record = store.record(Action("rule", key, fields, [output], {}, {"way": about}))
        if asked:
            leases.note_folder(store, [key])
        return record

    make.store = store  # ty: ignore[missing-attribute]
    return make


def outputs(jobs):
    return [job["outputs"] for job in jobs]


def test_the_actions_on_the_way_come_makers_first_each_once(made):
    made("artifacts/a", "a", "a")
    made("artifacts/b", "b", "b", [("artifacts/a", "a")])
    made("artifacts/c", "c", "c", [("artifacts/b", "b"), ("artifacts/a", "a")])
    found = way.jobs(made.store, ["artifacts/c"], Path())
    assert outputs(found) == [["artifacts/a"], ["artifacts/b"], ["artifacts/c"]]
    assert found[-1]["inputs"] == ["artifacts/a", "artifacts/b"]
    assert found[-1]["recipe"] == "recipe of artifacts/c"
    assert found[-1]["fields"] == {"rule": "rule", "inputs": {"source": "recipe:x:0"}}


def test_of_what_does_not_stand_here_as_it_was_stored_nothing_is_said(made):
    made("artifacts/a", "a", "a")
    assert way.jobs(made.store, ["artifacts/a", "artifacts/b"], Path())
    Path("artifacts/a").unlink()
    assert way.jobs(made.store, ["artifacts/a"], Path()) == []
    Path("artifacts/a").write_text("edited")
    assert way.jobs(made.store, ["artifacts/a"], Path()) == []


def test_an_action_that_is_on_no_record_here_is_named(made):
    made("artifacts/a", "a", "a")
    made("artifacts/b", "b", "b", [("artifacts/a", "a")])
    next(made.store.root.glob("actions/rule/aaa*")).unlink()
    missing, own = way.jobs(made.store, ["artifacts/b"], Path())
    assert missing["outputs"] == ["artifacts/a"] and "fields" not in missing
    assert own["outputs"] == ["artifacts/b"]


def test_what_another_model_gave_has_this_ones_names(made):
    made("artifacts/one_tp1.mlir", "program", "a")
    os.link("artifacts/one_tp1.mlir", "artifacts/other_tp1.mlir")
    found = way.jobs(made.store, ["artifacts/other_tp1.mlir"], Path())
    assert outputs(found) == [["artifacts/other_tp1.mlir"]]


def test_one_action_may_stand_here_by_two_names_and_be_read_by_either(made):
    made("artifacts/m.gguf", "weights", "a")
    os.link("artifacts/m.gguf", "artifacts/m.f16.gguf")
    made("artifacts/m.record", "record", "b", [("artifacts/m.f16.gguf", "a")])
    found = way.jobs(made.store, ["artifacts/m.gguf", "artifacts/m.record"], Path())
    assert outputs(found) == [
        ["artifacts/m.gguf"],
        ["artifacts/m.f16.gguf"],
        ["artifacts/m.record"],
    ]
    assert found[0]["key"] == found[1]["key"]


def test_of_two_actions_that_gave_the_same_the_latest_used_counts(made):
    first = made("artifacts/a", "a", "a")
    made("artifacts/a", "a", "b")
    os.utime(first.path, (1, 1))
    assert way.stand(made.store, ["artifacts/a"])["artifacts/a"].key == "b" * 64
    os.utime(first.path)
    os.utime(made.store.root / "actions/rule" / ("b" * 64), (1, 1))
    assert way.stand(made.store, ["artifacts/a"])["artifacts/a"].key == "a" * 64


def test_what_no_run_of_this_folder_asked_for_is_found_all_the_same(made):
    made("artifacts/a", "a", "a", asked=False)
    assert way.stand(made.store, ["artifacts/a"])["artifacts/a"].key == "a" * 64


def test_the_last_of_a_name_is_found_whether_it_stands_or_not(made):
    old = made("artifacts/a", "old", "a")
    new = made("artifacts/a", "new", "b")
    os.utime(old.path, (1, 1))
    Path("artifacts/a").unlink()
    assert way.last(made.store, "a").key == new.key
    assert way.last(made.store, "none") is None
