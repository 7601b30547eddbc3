"""What is older than its model is said: by the digests of a local checkpoint's files, by a hub's commit."""

import json
import os
import shutil
from pathlib import Path

import pytest

import checkpoints
from conftest import ROOT
from ingot.base import digest
from ingot.driver.catalogue import schema
from ingot.driver.commands import cli, numbers
from ingot.driver.release import older
from ingot.model.checkpoint import adapter, identity
from ingot.store import leases
from ingot.store.records import Action, Store

TARGET = "artifacts/mine.gguf"


@pytest.fixture
def made(folder):
    """made({role: [[name, digest], ...]}) is a record of artifacts/mine.gguf; `mine` is its checkpoint."""
    Path("mine").mkdir()
    shard("a")
    Path("mine/config.json").write_text("{}")
    Path("artifacts").mkdir()
    Path(TARGET).write_text("weights")
    store = Store()
    assert store.prepare()

    def make(inputs, path=TARGET, key="b", **about):
        """The digest of what the action gave."""
        output = {**store.take(Path(path)), "title": Path(path).name}
        about = {"way": {"writes": [path], "reads": {}}, **about}
        store.record(Action("rule", key * 64, {"inputs": inputs}, [output], {}, about))
        leases.note_folder(store, [key * 64])
        return output["digest"]

    return make


def shard(text):
    data = (text * 32).encode()
    checkpoints.write_shard(Path("mine/model.safetensors"), {"w": ("F32", (8,), data)})


def reason(**entry):
    return older.why(ROOT, Store(), {"models": models(**entry)}, [TARGET]).get(TARGET, "")


def models(**entry):
    return {"mine": entry or {"path": "mine"}, "base": {"path": "mine"}}


def read(folder="mine"):
    """What a step that read the checkpoint has on record."""
    files = [Path(folder, "model.safetensors"), Path(folder, "config.json")]
    return {
        "weights": [[files[0].name, identity.of(files[0])]],
        "tokenizer": [[files[1].name, digest.of(files[1])]],
    }


def test_a_file_of_the_model_that_changed_is_named(made):
    made(read())
    assert reason() == ""
    Path("mine/config.json").write_text('{"a": 1}')
    assert reason() == "mine/config.json has changed since"


def test_a_file_that_came_or_went_is_named(made):
    """`ingot explain` said so; the answers followed the old template without a word."""
    made(read())
    Path("mine/chat_template.jinja").write_text("{{ messages }}")
    Path("mine/notes.txt").write_text("no rule reads it")
    assert reason() == "mine/chat_template.jinja is new since"
    Path("mine/chat_template.jinja").unlink()
    assert reason() == ""
    Path("mine/config.json").unlink()
    assert reason() == "config.json is gone since"


def test_one_changed_value_is_seen_of_a_shard_that_is_no_large_one(made):
    made(read(), samples={"model.safetensors": identity.sample("mine/model.safetensors")})
    os.utime("mine/model.safetensors", (1, 1))  # another state, the same weights
    assert reason() == ""
    with Path("mine/model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"c")
    assert reason() == "mine/model.safetensors has changed since"


def test_large_weights_are_compared_by_samples_where_their_state_is_not_on_record(
    made, monkeypatch
):
    monkeypatch.setattr(older, "LARGE", 0)
    made(read(), samples={"model.safetensors": identity.sample("mine/model.safetensors")})
    os.utime("mine/model.safetensors", (1, 1))
    monkeypatch.setattr(identity, "of", None)  # nothing is read whole
    assert identity.known("mine/model.safetensors") is None and reason() == ""
    shard("b")
    assert reason() == "mine/model.safetensors has changed since"


def test_what_an_action_made_is_no_file_of_the_model(made):
    Path("artifacts/config.json").write_text("made")
    given = made({}, "artifacts/config.json", "a")
    made({"tokenizer": [["config.json", given]]})
    assert reason() == ""


def test_what_an_action_of_another_folder_made_is_no_file_of_the_model_either(made):
    """Of a model of the hub that was restored, each file was gone."""
    way = {"writes": [TARGET], "reads": {"artifacts/mine.hf/config.json": ["fetch_file", "f" * 64]}}
    made({"tokenizer": [["config.json", "sha256:0"]], "config": "sha256:0"}, way=way)
    assert reason() == reason(hub="me/mine", shards=1) == ""


def test_what_its_inputs_were_made_of_counts(made):
    Path("artifacts/mine.bf16.gguf").write_text("whole")
    whole = made(read(), "artifacts/mine.bf16.gguf", "a")
    made({"gguf": whole})
    assert reason() == ""
    Path("mine/config.json").write_text('{"a": 1}')
    assert reason() == "mine/config.json has changed since"


def test_an_action_that_gave_the_same_bytes_of_the_file_of_now_counts(made):
    """A changed file gave the same bytes, so that what rests on them was not made again: it was older for
    good, and Snakemake had nothing to do."""
    Path("artifacts/mine.bf16.gguf").write_text("whole")
    whole = made(read(), "artifacts/mine.bf16.gguf", "a")
    made({"gguf": whole})
    Path("mine/config.json").write_text('{"a": 1}')
    made(read(), "artifacts/mine.bf16.gguf", "c")
    assert reason() == ""
    Path("mine/config.json").write_text("{}")
    assert reason() == "", "back again"
    Path("mine/config.json").write_text('{"b": 1}')
    assert reason() == "mine/config.json has changed since"


def test_another_models_action_is_compared_with_this_ones_files(made):
    """One action gave the bytes of both: of twin, whose file was asked for first."""
    shutil.copytree("mine", "twin")
    shutil.copy(TARGET, "artifacts/twin.gguf")
    digest.of(TARGET)  # as a run does
    Path("artifacts/twin.bf16.gguf").write_text("whole")
    whole = made(read("twin"), "artifacts/twin.bf16.gguf", "a")
    made({"gguf": whole}, "artifacts/twin.gguf")
    Path("twin/config.json").write_text("retrained")
    assert reason() == ""
    Path("mine/config.json").write_text("retrained")
    assert reason() == "mine/config.json has changed since"


def test_of_what_cannot_be_read_or_lies_elsewhere_nothing_is_said(made, monkeypatch):
    made(read())
    Path("mine/config.json").write_text('{"a": 1}')
    shutil.copy(TARGET, "mine.gguf")
    assert reason() and not older.why(ROOT, Store(), {"models": models()}, ["mine.gguf", "../x"])
    monkeypatch.setattr(older.digest, "of", raising)
    assert reason() == ""


def raising(path):
    raise PermissionError(13, "Permission denied", str(path))


def test_an_adapters_own_files_and_its_bases_count(made):
    Path("lora").mkdir()
    Path("lora/adapter_config.json").write_text("{}")
    (Path("lora") / adapter.WEIGHTS).write_text("weights")
    names = ("adapter_config.json", adapter.WEIGHTS)
    its = [[name, digest.of(Path("lora", name))] for name in names]
    made(read() | {"weights": [*read()["weights"], *its]})
    entry = {"adapter": {"base": "base", "lora": "lora"}, "path": "mine"}
    assert reason(**entry) == ""
    Path("lora/adapter_config.json").write_text("[]")
    assert reason(**entry) == "lora/adapter_config.json has changed since"


def test_another_commit_or_repository_in_the_catalogue_is_said(made):
    place = "artifacts/mine.hf/listing.json"
    Path(place).parent.mkdir()
    Path(place).write_text(json.dumps({"hub": "me/mine", "revision": "a" * 40, "files": {}}))
    listing = made({}, place, "a")
    made({"listing": listing})
    entry = {"hub": "me/mine", "shards": 1}
    assert reason(**entry, revision="a" * 40) == reason(**entry) == ""
    said = f"made of me/mine at {'a' * 12}, the catalogue has {'c' * 12}"
    assert reason(**entry, revision="c" * 40) == said
    said = f"made of me/mine at {'a' * 12}, the catalogue has me/other"
    assert reason(hub="me/other", shards=1) == said


def test_of_what_is_on_no_record_nothing_is_said(made):
    assert reason() == ""


def test_numbers_say_it_and_hold_it(made, monkeypatch, capsys):
    monkeypatch.setattr(schema, "load", lambda *_: {"models": models()})
    made(read())
    sha256 = digest.of(TARGET).removeprefix("sha256:")
    row = dict.fromkeys(numbers.COLUMNS, 0.5)
    Path(f"{TARGET}.verified.json").write_text(
        json.dumps({"sha256": sha256, "checks": {"numbers": row}})
    )
    Path("mine/config.json").write_text('{"a": 1}')
    assert cli.main(["numbers", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["older"] == "mine/config.json has changed since"
    assert said.err == (
        f"{TARGET}: older than its model: mine/config.json has changed since; "
        f"`snakemake {TARGET}` builds it again\n"
    )
    assert numbers.divergences(ROOT, {"models": models()}) == {}, "no figure of the model as it is"
