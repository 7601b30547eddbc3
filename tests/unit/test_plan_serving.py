"""What `ingot plan` says of serving, and what it refuses, before anything is asked of Snakemake."""

import json

import pytest

from ingot.driver.commands import cli, plan_table
from ingot.driver.commands import plan as command
from ingot.driver.forecast.past import Past
from ingot.driver.forecast.schedule import count_of
from ingot.store.records import Store


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """plan("llama70b") is its answer; nothing is fetched: it plans by the catalogue's dimensions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("INGOT_STORE", str(tmp_path / "store"))

    def run(*words):
        assert not cli.main(["plan", *map(str, words)])
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_a_request_longer_than_the_models_context_is_refused(command, plan):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "llama70b", "--context", "500000"])
    assert end.value.code == "error: --context: 500000, expected at most 131072, the model's own"
    assert (
        json.loads(plan("llama70b", "--context", 131072, "--json"))["serving"][0]["context"]
        == 131072
    )


def test_a_context_that_nobody_asked_for_is_called_the_models(plan):
    said = plan("llama405b")
    assert "not the 131072 of the model's context" in said and "asked for" not in said
    assert "not the 100000 asked for" in plan("llama405b", "--context", 100_000)


def test_shortfin_has_no_layout_of_a_size_that_the_catalogue_does_not_name(plan):
    (one,) = json.loads(plan("llama405b", "--json"))["serving"]
    rows = {row["tp"]: row for row in one["layouts"]["shortfin"]}
    assert rows[2]["wrong"] == "the model's `tp` in the catalogue is 1, 4, 8"
    assert not rows[2]["fits"] and rows[4]["wrong"] is None
    assert rows[16]["wrong"] == "8 KV heads are not divisible by 16"
    assert all(row["wrong"] is None for row in one["layouts"]["vllm"] if row["tp"] == 2)


def test_what_is_up_to_date_has_no_word_on_where_figures_are_from(tmp_path):
    def said(action):
        forecast = {
            "seconds": 1,
            "memory": 1,
            "download": 0,
            "gpus": 0,
            "files": {"artifacts/m.gguf": 1},
        }
        job = {"action": action, "outputs": ["artifacts/m.gguf"], "inputs": [], "files": [],
               "rule": "convert", "step": "convert", "forecast": forecast}  # fmt: skip
        found = command.of_build([job], {"artifacts/m.gguf"}, 2, Past(Store(tmp_path)))
        return "\n".join(plan_table.of_build(found))

    assert "artifacts/m.gguf: up to date" in said("none") and "on record yet" not in said("none")
    assert "no job of these kinds is on record yet" in said("run")


def test_a_small_model_is_told_in_units_of_its_size(plan):
    said = plan("demo")
    assert (
        "million parameters, weights " in said
        and " MB; KV cache 4 KiB per token, 2.00 MiB for 512" in said
    )
    assert "0.00" not in said
    said = plan("llama405b")
    assert (
        "405.85 billion parameters, weights 812 GB; KV cache 504 KiB per token, 63.00 GiB for"
        in said
    )


def test_a_count_of_parameters_has_the_unit_of_its_size():
    found = [count_of(count) for count in (8_030_261_248, 5_771_520, 12_345)]
    assert found == ["8.03 billion parameters", "5.77 million parameters", "12,345 parameters"]
