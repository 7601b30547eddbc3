"""`ingot speed`: which forms it times, what it refuses, and when a figure is no longer of the file."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from ingot.base.refused import Refused
from ingot.driver.commands import speed

SPEED = {"median": 20.0, "least": 18.0, "most": 30.0}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """there(name, ...) makes artifacts of these names."""
    monkeypatch.chdir(tmp_path)
    Path("artifacts").mkdir()

    def make(*names):
        for name in names:
            Path("artifacts", name).write_bytes(name.encode())

    return make


def test_a_model_is_timed_by_all_its_forms_that_a_cpu_runs(there):
    there("m.gguf", "m.q8_0.gguf", "m.int8.onnx", "m.irpa", "m_tp2.irpa", "more.gguf")
    there("m.lora.gguf", "m.mmproj.gguf", "m.prefill.onnx", "m.gguf.verified.json", "m.speed.json")
    assert [form.name for form in speed.forms_of(["m"])] == ["m.gguf", "m.int8.onnx", "m.q8_0.gguf"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["n"], r"no form of n that a CPU runs.*snakemake artifacts/n\.gguf"),
        (["artifacts/m.irpa"], r"m\.irpa: no CPU runs it here"),
        (
            ["artifacts/m.q4_0.gguf"],
            r"not built yet; `snakemake artifacts/m\.q4_0\.gguf` builds it",
        ),
        (["m", "more"], "m, more: several models, expected forms of one"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(words, said, there):
    there("m.gguf", "m.irpa", "more.gguf")
    with pytest.raises(Refused, match=said):
        speed.forms_of(words)


def test_fewer_than_one_round_is_refused(tmp_path):
    options = Namespace(what=["m"], prompt=1, generate=1, rounds=0, threads=1, json=False)
    with pytest.raises(Refused, match="--rounds: 0, expected 1 or more"):
        speed.run(tmp_path, options)


def test_the_median_of_the_rounds_is_shown_with_the_furthest_round():
    assert speed.spread([30, 18, 20]) == SPEED
    assert speed.shown(SPEED) == "20 ± 10"


def test_a_figure_is_of_the_bytes_that_were_timed(there):
    there("m.gguf", "m.q8_0.gguf")
    forms = [
        {"artifact": f"artifacts/{name}", "digest": speed.digest.of(f"artifacts/{name}"),
         "prompt": SPEED, "generation": SPEED}
        for name in ("m.gguf", "m.q8_0.gguf")
    ]  # fmt: skip
    about = {"machine": "a processor", "threads": 2, "busy": 0.0, "written": "today"}
    speed.file_of("m").write_text(json.dumps({**about, "forms": forms}))
    Path("artifacts/m.q8_0.gguf").write_bytes(b"built again")
    assert speed.of_forms("m") == {
        **about, "forms": {"artifacts/m.gguf": {"prompt": 20.0, "generation": 20.0}}
    }  # fmt: skip
    speed.file_of("m").write_text("[]")
    assert speed.of_forms("m") == {} == speed.of_forms("of nobody")
