"""models.local.yaml: what `ingot add` and `remove` change of it, and what they leave as it was."""

from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import own_file, schema
from ingot.driver.commands import cli, remove

MINE = "  mine:\n    path: here\n    name: Mine\n    architecture: A\n"


@pytest.fixture
def local(tmp_path, monkeypatch):
    """local(text) is the folder's own catalogue; without a text it says what that holds now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schema, "LOCAL", "models.local.yaml")
    path = Path("models.local.yaml")

    def run(text=None):
        if text is not None:
            path.write_text(text)
        return path.read_text() if path.exists() else None

    return run


def said(capsys, *words):
    assert cli.main(["remove", *words]) is None
    return capsys.readouterr().out.splitlines()


def test_an_entry_goes_and_every_other_line_stays(local, capsys):
    local(f"# my own\nmodels:\n{MINE}  # of ours\n  other:\n    path: there  # a disk\nkeep: all\n")
    lines = said(capsys, "mine")
    assert (
        local()
        == "# my own\nmodels:\n  # of ours\n  other:\n    path: there  # a disk\nkeep: all\n"
    )
    assert lines == [f"{Path.cwd()}/models.local.yaml: mine removed"]


def test_with_the_last_entry_the_file_goes_where_nothing_else_is_in_it(local, capsys):
    local(f"{own_file.HEADER}models:\n{MINE}")
    said(capsys, "mine")
    assert local() is None
    local(f"keep: all\nmodels: # none else\n{MINE}")
    said(capsys, "mine")
    assert local() == "keep: all\n"


def test_notes_in_the_file_keep_it(local, capsys):
    local(f"{own_file.HEADER}models:\n{MINE}  # other: of tomorrow\n")
    said(capsys, "mine")
    assert local() == f"{own_file.HEADER}  # other: of tomorrow\n"


def test_its_files_are_named_and_no_other_models(local, capsys):
    local(f"models:\n{MINE}")
    Path("artifacts").mkdir()
    for name in ("mine.gguf", "mine_tp1.vmfb", "mine-too.gguf", "other.gguf"):
        Path("artifacts", name).touch()
    assert said(capsys, "mine")[1] == (
        "its files stay; without them: rm -r artifacts/mine.gguf artifacts/mine_tp1.vmfb"
    )
    assert len([*Path("artifacts").iterdir()]) == 4


def test_an_entry_that_no_command_can_read_is_removed_too(local, capsys):
    local("models:\n  mine:\n    path: 7\n")
    said(capsys, "mine")
    assert local() is None


@pytest.mark.parametrize("entry", ["a: 5", "a:", "a: {b: 1}", "a: |\n    text"])
def test_an_entry_that_is_none_is_removed_too(entry, local):
    local(f"models:\n  {entry}\n  b: {{path: y}}\n")
    own_file.remove("a")
    assert local() == "models:\n  b: {path: y}\n"


def test_changes_to_a_shipped_model_are_taken_back(local, capsys):
    local("models:\n  demo:\n    quants: [q8_0]\n")
    assert said(capsys, "demo")[0].endswith("demo removed; demo is that of models.yaml again")


@pytest.mark.parametrize(
    "text, name, reason",
    [
        ("keep: all\n", "demo", "demo: shipped with Ingot, expected a model of your own"),
        ("keep: all\n", "axolotl", r"axolotl: no model of models\.local\.yaml; it has none"),
        ("x: &x {a: {path: x}}\nmodels:\n  <<: *x\n", "a", "a: shares its lines"),
        ("models: {a: {path: x}, b: {path: y}}\n", "a", "a: shares its lines, expected lines of its"),
        (
            "models:\n  a:\n    path: x\n  lora:\n    adapter: {base: a, lora: y}\n", "a",
            "a: lora rests on it, expected no adapter; remove lora first",
        ),
        (
            "models:\n  a:\n    adapter: {base: b, lora: y}\n  b: {path: x, vllm: {adapters: [a]}}\n", "a",
            r"a: models\.b\.vllm\.adapters names it, expected an adapter that nothing serves",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_take_out_is_said_and_nothing_is_changed(text, name, reason, local):
    before = local(text)
    with pytest.raises(Refused, match=reason):
        remove.run(ROOT, Namespace(model=name))
    assert local() == before


def test_an_entry_that_is_added_is_one_that_is_removed(local, monkeypatch):
    local("# mine\nmodels:\n  other:\n    path: there\n")
    monkeypatch.setattr(schema, "load", lambda *_: {})
    own_file.write(ROOT, "mine", {"path": "here", "dimensions": {"layers": 1}})
    assert yaml.safe_load(local())["models"]["mine"]["dimensions"] == {"layers": 1}
    own_file.remove("mine")
    assert local() == "# mine\nmodels:\n  other:\n    path: there\n"
    local("models: {a: {path: x}}\n")
    with pytest.raises(Refused, match="its last part is not `models:`"):
        own_file.write(ROOT, "mine", {"path": "here"})
