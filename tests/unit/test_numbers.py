"""`ingot numbers`: a table of the records that lie here."""

import json

import pytest

from ingot.driver.commands import numbers
from ingot.driver.commands.cli import main

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


def test_without_any_it_says_what_to_ask_for(here, capsys):
    assert main(["numbers", "demo"]) == 1
    assert (
        "ask for one, such as artifacts/demo.q4_k_m.gguf.verified.json" in capsys.readouterr().err
    )
