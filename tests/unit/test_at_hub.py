"""What a command asks the hub before anything is built, by steps of our own in place of the hub's."""

import shutil
import sys

import pytest

import checkpoints
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue.model import Model
from ingot.driver.commands import at_hub, plan


@pytest.fixture
def steps_of_the_hub(tmp_path, monkeypatch):
    """steps_of_the_hub(line, ...) are what the hub's steps do; a catalogue of two models on it."""

    def do(*lines):
        python = tmp_path / "bin/python"
        python.parent.mkdir()
        python.write_text("\n".join((f"#!{sys.executable}", *lines)))
        python.chmod(0o755)
        monkeypatch.setattr(at_hub.toolchains, "build", lambda root, name: tmp_path)
        monkeypatch.chdir(tmp_path)
        return {"models": {name: {"hub": f"o/{name}", "gated": False} for name in "ab"}}

    return do


def test_what_a_plan_fetches_ends_with_the_plan(tmp_path, steps_of_the_hub):
    """A hub that does not answer is asked for minutes: a command that was refused waited for it."""
    marker = tmp_path / "went on"
    sleeps = ("import pathlib, time", "time.sleep(20)", f"pathlib.Path({str(marker)!r}).touch()")
    catalogue = steps_of_the_hub(*sleeps)
    with (
        pytest.raises(Refused, match="for another reason"),
        plan.fetching(ROOT, catalogue, ["a", "b"], tmp_path),
    ):
        raise Refused("for another reason")
    assert not marker.exists()


def test_a_hub_that_does_not_answer_is_not_waited_for_where_the_catalogue_has_the_dimensions(
    tmp_path, steps_of_the_hub, monkeypatch, capsys
):
    """It was asked six times: for 31 s where it refuses connections, for minutes where it is silent."""
    marker = tmp_path / "went on"
    sleeps = ("import pathlib, time", "time.sleep(20)", f"pathlib.Path({str(marker)!r}).touch()")
    catalogue = steps_of_the_hub(*sleeps)
    for entry in catalogue["models"].values():
        entry["dimensions"] = {}
    monkeypatch.setattr(plan, "PATIENCE", 0.1)
    with plan.fetching(ROOT, catalogue, ["a", "b"], tmp_path) as wait:
        wait()
    assert capsys.readouterr().err == (
        "o/a: not had from the hub in 0 s\nplanned by the catalogue's dimensions\n"
    )
    assert not marker.exists()


def test_a_model_that_is_not_here_is_planned_by_its_config_and_its_list_of_files(
    tmp_path, steps_of_the_hub
):
    files = {"model.safetensors": {"size": 4711, "sha256": "0" * 64}}
    catalogue = steps_of_the_hub(
        "import sys, json, pathlib",
        "written = '--listing' if 'fetch_listing' in sys.argv[1] else '--file'",
        f"said = {{'hub': 'o/a', 'revision': {'0' * 40!r}, 'files': {files!r}}}",
        "pathlib.Path(sys.argv[sys.argv.index(written) + 1]).write_text(json.dumps(said))",
    )
    with plan.fetching(ROOT, catalogue, ["a", "b"], tmp_path) as wait:
        wait()
    shutil.copy(checkpoints.DEMO / "config.json", tmp_path / "a.json")
    entry = {"architecture": "LlamaForCausalLM", "hub": "o/a"}
    model = Model("a", {"models": {"a": entry}}, ROOT, [tmp_path])
    assert (model.checkpoint_bytes(), model.here) == (4711, True)
