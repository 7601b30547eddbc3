"""`ingot numbers`: a table of the records that lie here."""

import json

import pytest

from conftest import ROOT
from ingot.driver.commands import numbers, report
from ingot.driver.commands.cli import main
from ingot.driver.release import changes, document, shown
from ingot.driver.show.quality import few
from ingot.driver.show.shown import verdict

NUMBERS = {
    "mean_kl": 0.0157, "mean_kl_error": 0.0002, "median_kl": 0.0077, "kl_99": 0.128, "kl_99_9": 0.287,
    "largest_kl": 0.975, "same_top": 0.9138, "rms_dp": 0.00402, "perplexity": 236.26,
    "perplexity_reference": 245.92, "tokens": 21973,
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """here(name, mean_kl) puts a record there; the artifact itself too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts").mkdir()

    def put(name, **numbers):
        (tmp_path / f"artifacts/{name}").write_bytes(b"x" * 3_562_720)
        checks = {"numbers": {**NUMBERS, **numbers}} if numbers else {"tensors": 1}
        record = {"format": 3, "checks": checks}
        (tmp_path / f"artifacts/{name}.verified.json").write_text(json.dumps(record))

    return put


def test_the_nearest_comes_first_and_records_without_numbers_are_left_out(here, capsys):
    here("demo.q4_k_m.gguf", mean_kl=0.0157)
    here("demo.q8_0.gguf", mean_kl=0.000188)
    here("demo.irpa")
    here("other.q4_k_m.gguf", mean_kl=0.03)
    main(["numbers", "demo"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| artifact | size | mean KL | median |")
    assert [line.split("`")[1] for line in lines[2:]] == ["demo.q8_0.gguf", "demo.q4_k_m.gguf"]
    assert lines[2].startswith("| `demo.q8_0.gguf` | 3.56 MB | 0.00019 | 0.0077 |")
    assert all(head in lines[0] for head, _ in numbers.COLUMNS.values())
    assert "| 91.38% | 0.40% | 236.26 | 245.92 | 21973 |" in lines[3]


def test_the_same_as_json(here, capsys):
    here("demo.q4_k_m.gguf", mean_kl=0.0157)
    main(["numbers", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["artifact"], row["bytes"]) == ("artifacts/demo.q4_k_m.gguf", 3562720)
    assert row["mean_kl"] == 0.0157


def test_a_misspelt_model_is_said_to_be_unknown_with_the_nearest(here):
    here("demo.q4_k_m.gguf", mean_kl=0.0157)
    for command in ("numbers", "speed", "report", "plan", "fit"):
        with pytest.raises(SystemExit) as end:
            main([command, "dmeo"])
        said = "error: dmeo: unknown model, expected one of the catalogue; nearest: demo"
        assert str(end.value) == said, command


@pytest.mark.parametrize(
    "command, says", [("numbers", "no record with numbers"), ("speed", "no form of granny")]
)
def test_a_model_of_ones_own_catalogue_is_known(command, says, here, tmp_path, capsys):
    here("demo.q4_k_m.gguf", mean_kl=0.0157)
    entry = f"path: {ROOT}/models/demo, name: M, architecture: LlamaForCausalLM, way: upstream"
    (tmp_path / "mine.yaml").write_text(f"models: {{granny: {{{entry}}}}}")
    ended = ""
    try:
        main([command, "granny", "--configfile", "mine.yaml"])
    except SystemExit as end:
        ended = str(end)
    assert says in ended + capsys.readouterr().err


def test_a_model_with_a_record_and_in_no_catalogue_has_its_row(here, capsys):
    here("granny.q4_k_m.gguf", mean_kl=0.0157)
    assert main(["numbers", "granny"]) == 0 and "granny.q4_k_m.gguf" in capsys.readouterr().out


def test_without_any_it_says_what_to_ask_for(here, capsys):
    assert main(["numbers", "demo"]) == 1
    assert (
        "ask for one, such as artifacts/demo.q4_k_m.gguf.verified.json" in capsys.readouterr().err
    )


CHECKS = {"metadata_pairs": 29, "tensors": 36, "whole": True, "off": 2.98e-08, "numbers": NUMBERS}
SAID = "mean KL 0.016, same best token 91.38%, metadata_pairs 29, tensors 36, off 2.98e-08"


def test_wherever_numbers_are_shown_the_divergence_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = {
        "result": "passed",
        "reference": "its files; transformers",
        "checks": CHECKS,
        "sha256": "1",
    }
    (tmp_path / "m.gguf").write_bytes(b"m")
    (tmp_path / "m.gguf.verified.json").write_text(json.dumps(said))
    first = "mean KL 0.016; same best token 91.38%; metadata_pairs 29"
    assert verdict("m.gguf.verified.json") == f"passed against its files; transformers; {first}"
    assert report._artifact(tmp_path / "m.gguf")["numbers"] == first
    cell = {"bytes": 1e6, "checks": CHECKS}
    assert document.Document("m", "1", {"m.gguf": cell}).table().endswith(f" MB  {SAID}")
    found = {
        "artifact": "m",
        "bytes": 1,
        "steps": [],
        "toolchains": [],
        "made_from": {},
        "cost": {},
    }
    assert f"numbers       {SAID}" in shown.lines({**found, "verification": said})


def test_numbers_that_no_record_could_have_are_left_out():
    for odd in (
        {"mean_kl": "x", "same_top": 10**400},
        {"mean_kl": -1, "same_top": None},
        [1],
        None,
    ):
        assert few({"tensors": 1, "numbers": odd}, 3) == ["tensors 1"]
    assert few([], 3) == few(None, 3) == []


def test_what_changed_in_the_divergence_is_said_first_and_in_the_same_words():
    def cell(digest, **more):
        checks = {"errors": {"Q4_K": len(digest)}, "numbers": {**NUMBERS, **more}}
        return {"recipe": digest, "digest": digest, "checks": checks}

    def changed(**more):
        old, new = document.Document("m", "1"), document.Document("m", "2")
        old.cells, new.cells = {"m": cell("1")}, {"m": cell("22", **more)}
        return changes.changes(old, new)[0].numbers

    assert changed(mean_kl=0.1, same_top=0.5, kl_99=0.2) == (
        "mean KL 0.016 → 0.1", "same best token 91.38% → 50.00%", "errors.Q4_K 1 → 2",
        "numbers.kl_99 0.128 → 0.2",
    )  # fmt: skip
    assert changed(mean_kl=0.01571)[0] == "mean KL 0.0157 → 0.01571"
    assert changed(mean_kl=None)[0] == "mean KL 0.016 → none"
