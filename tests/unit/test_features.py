"""What a format can express of a model: one answer, by targets, `add`, the page and the steps."""

import importlib
import json
import re
from pathlib import Path

import pytest

import checkpoints
import formats
from conftest import ROOT
from ingot.base.options import call
from ingot.base.refused import Refused
from ingot.driver.catalogue import found as found_of
from ingot.driver.catalogue import model as known
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import FORMATS, OFFERED
from ingot.driver.commands import add
from ingot.model.config import read_config
from ingot.model.features import ALL, FEATURES

CHANGES = {  # of a config.json, by need; own_gguf is a family's: test_families
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    },
}
LLAMA = {"architecture": "LlamaForCausalLM"}
VLLM = json.dumps({"dtype": "auto", "device": "cpu"})
STEPS = {  # of a target: the first step that reads config.json for it, before anything else that it needs
    "m.gguf": ("safetensors_to_gguf", "--dtype=f16", "--name=A", "--pre-tokenizer=llama-bpe", "--gguf"),
    "m.q4_k_m.gguf": (
        "quantize_gguf", "--quant=q4_k_m", "--name=A", "--pre-tokenizer=llama-bpe", "--gguf"
    ),
    "m_tp2.irpa": ("shard_irpa", "--dtype=f16", "--tp=2", "--ranks", "out.rank0", "out.rank1", "--root"),
    "m_tp1.mlir": ("export_mlir", "--server-config=unwritten", "--mlir"),
    "m_tp2.mlir": ("export_mlir", "--tp=2", "--server-config=unwritten", "--mlir"),
    "m_tp2.trtllm-ckpt": ("safetensors_to_trtllm", "--tp=2", "--trtllm-checkpoint"),
    "m.onnx": ("export_onnx", "--tokenizer", "unread", "--onnx"),
    "m.openvino": ("export_openvino", "--tokenizer", "unread", "--openvino"),
    "m.torchpipe": ("split_onnx", "--tokenizer", "unread", "--torchpipe"),
}  # fmt: skip

# which onnxruntime-genai's builder and optimum-intel write instead of us
BY_OTHERS = {(f"m.{name}", need) for name in ("onnx", "openvino") for need in ("yarn",)}


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    """catalogue(**changes) has a model m of such a config.json, here."""
    monkeypatch.chdir(tmp_path)

    def run(**changes):
        config = checkpoints.llama_config(**{"rope_scaling": None, **changes})
        (tmp_path / "m").mkdir(exist_ok=True)
        checkpoints.write_json(tmp_path / "m/config.json", config)
        entry = {"path": "m", "name": "M", "architecture": config["architectures"][0],
                 "pre_tokenizer": "llama-bpe", "tp": [1, 2], "imatrix": "corpus.txt"}  # fmt: skip
        found = schema.read(ROOT / schema.FILE)
        found["models"] = {"m": entry}
        schema.complete(found, ROOT)
        return found

    return run


@pytest.mark.parametrize("need", CHANGES)
def test_a_target_that_the_format_cannot_express_is_refused_by_the_models_own_words(
    need, catalogue
):
    plain, asking = catalogue(), catalogue(**CHANGES[need])
    assert asking["models"]["m"]["needs"] == [need] and plain["models"]["m"]["needs"] == []
    legal, left = ({*targets.legal_of("m", one)} for one in (plain, asking))
    assert legal - left
    for name in legal | left:
        row = FORMATS[targets.parsed(name, asking).format]
        can = need in row.can(targets.parsed(name, asking))
        reason = targets.why_not(name, asking)
        assert (name in left) is can is (reason is None), name
        assert can or reason == f"{FEATURES[need]}, which .{row.name} cannot express"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("need", CHANGES)
def test_the_step_says_what_the_target_says(name, need, catalogue, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    reason = targets.why_not(f"artifacts/{name}", catalogue(**CHANGES[need])) or ""
    script, *words = STEPS[name]
    where = ("--config", "m/config.json") if script == "export_mlir" else ("--checkpoint", "m")
    try:
        call(getattr(importlib.import_module(script), script), [*where, *words, "out"])
        said = "done"
    except ImportError as error:  # of what the toolchain has, and the driver has not
        said = str(error)
    except Refused as error:
        said = str(error)
    if (name, need) in BY_OTHERS:
        assert reason == "" and "which this format cannot express" in said
        return
    assert ("which this format cannot express" in said) is ("cannot express" in reason), said
    assert reason == "" or FEATURES[need] in said


@pytest.mark.parametrize("row", OFFERED, ids=lambda row: row.name)
def test_a_window_ends_the_context_for_every_format_alike(row, catalogue):
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    found = catalogue(**mistral, sliding_window=64)
    assert found["models"]["m"]["needs"] == []
    assert read_config(known.config_of("m", found["models"]["m"], ROOT)).context == 64
    assert [one for one in targets.legal_of("m", found) if one.endswith(f".{row.name}")] == [
        one for one in targets.legal_of("m", catalogue()) if one.endswith(f".{row.name}")
    ]


def test_add_says_what_cannot_be_built_and_why_before_anything_is_fetched(catalogue, tmp_path):
    found = catalogue(**CHANGES["yarn"])
    entry = found["models"]["m"] | {"dimensions": {}, "hub": "org/m", "revision": "0" * 40}
    config = read_config(tmp_path / "m/config.json", can=ALL)
    keys = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context")
    entry["dimensions"] = {key: getattr(config, key) for key in keys}
    lines = add.about(ROOT, "m", entry, 0, found)
    cannot = [line for line in lines if line.startswith("cannot: ")]
    (yarn,) = [line for line in cannot if "rope_type is yarn, which it cannot express" in line]
    assert " torchpipe, rtx:" in yarn and not re.search(r"\b(onnx|openvino)\b", yarn)
    assert not [line for line in cannot if " gguf" in line.partition(":")[2]]


def test_needs_that_are_not_config_jsons_own_are_refused(catalogue, tmp_path):
    catalogue(**CHANGES["mlp_bias"])
    for said, words in ((["yarn"], "yarn"), ([], "")):
        refused = known.fill_needs("m", {**LLAMA, "path": "m", "needs": said}, ROOT)
        assert re.match(rf"models.m.needs: {words}, but m/.* says mlp_bias", refused or "")
    unread = {**LLAMA, "hub": "org/m", "needs": ["yarn"]}
    known.fill_needs("other", unread, ROOT)  # which is not here
    assert unread["needs"] == ["yarn"]


def test_of_a_config_json_that_is_refused_no_target_can_be_built(catalogue):
    """A reader was offered every target of a model whose config.json each step refused."""
    found = catalogue(hidden_act="gelu")
    reason = "m/config.json: hidden_act is gelu, expected silu; it would be left out"
    assert [*targets.legal_of("m", found)] == []
    for name in ("m.gguf", "m_tp1.vmfb", "m_tp2.trtllm-ckpt", "m.onnx.verified.json"):
        assert targets.why_not(f"artifacts/{name}", found) == reason
    schema.complete(found, ROOT)  # once more
    assert targets.why_not("artifacts/m.gguf", found) == reason
    with pytest.raises(Refused, match="refused: no such key"):
        schema.complete({**found, "refused": {}}, ROOT)  # by a user
    assert [*targets.legal_of("m", catalogue())]


def test_numbers_that_config_json_contradicts_are_refused_of_that_models_targets_alone(catalogue):
    """config.json was changed behind `ingot add`: a traceback, whatever was asked."""
    found = catalogue()
    config = read_config(Path("m/config.json"), can=ALL)
    told = {key: getattr(config, key) for key in schema.SIZES}
    found["models"]["m"]["dimensions"] = {**told, "vocab": 999}
    schema.complete(found, ROOT)
    reason = targets.why_not("artifacts/m.gguf", found) or ""
    said = f"models.m.dimensions.vocab: 999, but m/config.json says {config.vocab}; write"
    assert reason.startswith(said) and known.Model("m", found, ROOT).refusal == reason


def test_add_keeps_needs_of_models_of_the_hub_alone(catalogue, tmp_path):
    """Those of a folder are read each time: kept, they were wrong once its family had changed."""
    catalogue(**CHANGES["linear"])
    checkpoints.tokenizer_of_demo(tmp_path / "m")
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    told = {
        kind: found_of.entry("m", names, tmp_path / "m", {kind: "m"}, "M").get("needs")
        for kind in ("path", "hub")
    }
    assert told == {"path": None, "hub": ["linear"]}


def test_the_page_is_what_the_rows_say():
    assert (ROOT / "docs/formats.md").read_text() == formats.page(), "run `make docs`"
