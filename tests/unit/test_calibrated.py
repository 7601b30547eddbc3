"""Schemes that llm-compressor calibrates: what is refused before it starts, and what is its to make."""

import json
import struct

import pytest

import checkpoints
from conftest import ROOT, planned
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.quantised import schemes
from ingot.parity import calibrated_weights, quantised_weights


@pytest.fixture(scope="module")
def step():
    import runpy

    return runpy.run_path(str(ROOT / "scripts/compress_safetensors.py"))


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_loaded(step, monkeypatch):
    held = step["hold_memory"]
    held(Checkpoint([checkpoints.DEMO]))
    monkeypatch.setitem(held.__globals__, "memory", lambda: 10**9)
    with pytest.raises(
        Refused, match=r"would need 1\.0 GB of memory, and this machine has 1\.0 GB"
    ):
        held(Checkpoint([checkpoints.DEMO]))


def test_a_text_that_cannot_be_read_is_named(step, tmp_path):
    (tmp_path / "t").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "t", tmp_path, tmp_path / "none"):
        with pytest.raises(Refused, match=f"^{path}: not a text in UTF-8"):
            step["read_text"](path)


def test_layers_that_stay_whole_are_named(step, tmp_path):
    """A server computes a router as a linear layer, whatever transformers does."""
    tensors = {
        "a.weight": ("F8_E4M3", [2, 4]), "a.weight_scale": ("BF16", [2, 1]),
        "mlp.gate.weight": ("BF16", [2, 4]), "norm.weight": ("BF16", [4]),
    }  # fmt: skip
    head, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = (1 if dtype == "F8_E4M3" else 2) * shape[0] * [*shape, 1][1]
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    assert step["left"](tmp_path, "m") == ["lm_head", "mlp.gate"]


def test_a_model_without_linear_layers_is_refused(step, tmp_path):
    text = json.dumps(
        {"a.weight": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(2))
    with pytest.raises(Refused, match=r"^m: llm-compressor quantises no layer of it"):
        step["left"](tmp_path, "m")


def test_experts_have_the_names_that_the_checkpoint_gives_them(step):
    source = {"e.0.w1.weight", "e.0.w2.weight", "e.0.w3.weight", "mlp.gate_proj.weight"}
    for found, wanted in (
        ("e.0.gate_proj.weight_scale", "e.0.w1.weight_scale"),
        ("e.0.up_proj.weight_packed", "e.0.w3.weight_packed"),
        ("e.0.down_proj.weight", "e.0.w2.weight"),
        ("mlp.gate_proj.weight_scale", "mlp.gate_proj.weight_scale"),
        ("model.norm.weight", "model.norm.weight"),
    ):
        assert step["named"](found, source) == wanted


def test_who_makes_which_scheme(snakemake, tmp_path):
    names = ("fp8", "fp8_static", "w4a16", "w4a16_gptq")
    words = [f"artifacts/demo.{name}.safetensors" for name in names]
    done = snakemake(tmp_path, "-n", "--", *words)
    assert done.returncode == 0, done.stderr
    rules = {path: rule for path, (rule, _) in planned(done.stdout + done.stderr).items()}
    for name, target in zip(names, words, strict=True):
        assert (rules[target] == "compress_safetensors") == (name in schemes.CALIBRATED), name


def test_the_verification_knows_all_schemes_by_itself():
    assert {*quantised_weights.PRESETS} == {*schemes.ALL}
    for name, preset in quantised_weights.PRESETS.items():
        assert schemes.ALL[name].preset == preset
    assert {*calibrated_weights.METHODS} < {*schemes.CALIBRATED}
