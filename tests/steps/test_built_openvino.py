"""A model that Ingot has no table of: optimum-intel writes OpenVINO, and numbers say if it is the model."""

import json
import os
import re
import socket
import subprocess
import sys
import xml.etree.ElementTree as xml
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.formats.onnx.openvino import exporter, session

sys.path.insert(0, str(ROOT / "docs"))
import architectures

DEMO = ROOT / "models/demo"
TASK = ("--task", "text-generation-with-past")
GRAPH, DATA = "openvino_model.xml", "openvino_model.bin"


@pytest.fixture
def build(step, tmp_path):
    def run(checkpoint, *words, **options):
        folder = tmp_path / "m.openvino"
        asked = ("--checkpoint", checkpoint, "--openvino", folder, *words)
        done = step("optimum-intel", "build_openvino.py", *asked, **options)
        assert done.returncode == 0, done.stderr
        return folder

    return run


@pytest.fixture
def verify(step, tmp_path):
    def run(folder, told, *words):
        record = tmp_path / "m.openvino.verified.json"
        asked = ("--openvino", folder, "--record", record, *words)
        return step("openvino", "verify_built_openvino.py", *asked, *told)

    return run


def last(done):
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.strip().splitlines()[-1]


def changed(folder, kind, before, after):
    """The data of an IR, each constant of one number `before` made `after`, by the graph's own text."""
    data, count = bytearray((folder / DATA).read_bytes()), 0
    for layer in xml.parse(folder / GRAPH).iter("layer"):
        said = layer.find("data")
        if layer.get("type") != "Const" or said.get("element_type") != kind:
            continue
        start, size = int(said.get("offset")), int(said.get("size"))
        numbers = np.frombuffer(
            bytes(data[start : start + size]), {"f32": "<f4", "i64": "<i8"}[kind]
        )
        if len(numbers) == 1 and np.isclose(numbers[0], before, rtol=1e-6, atol=0):
            data[start : start + size] = numbers.dtype.type(after).tobytes()
            count += 1
    assert count
    return bytes(data)


@pytest.mark.slow
def test_the_architectures_are_those_that_optimum_intel_registers():
    assert architectures.EXPORTER.read_text() == architectures.exporter()
    assert {"Qwen3ForCausalLM", "GptOssForCausalLM"} < exporter.ARCHITECTURES


@pytest.mark.slow
def test_a_family_without_a_table_is_exported_as_the_tools_command_does_and_verified(
    tiny, build, verify, peers, python, edit, tmp_path
):
    checkpoint = tiny("qwen3")
    folder, told = build(checkpoint), peers(checkpoint, way="upstream")
    done = verify(folder, told)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "m.openvino.verified.json").read_bytes())
    checks = record["checks"]
    assert record["way"] == "upstream: optimum-intel"
    assert checks["numbers"]["mean_kl"] < 1e-6 and checks["numbers"]["same_top"] == 1
    assert checks["greedy_equal"] == checks["openvino_genai"]["greedy_equal"] == 24
    assert checks["texts_equal"] == checks["texts"]
    tool = (python("optimum-intel").parent / "optimum-cli", "export", "openvino", *TASK)
    subprocess.run(
        [*tool, "--weight-format=fp32", "--model", checkpoint, tmp_path / "theirs"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "CI": "true"},  # where it reports its use to nobody
        capture_output=True, check=True,
    )  # fmt: skip
    for path in (tmp_path / "theirs").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    # planted: another end of an answer; a tokenizer that does not run
    said = json.loads((folder / "generation_config.json").read_bytes())
    edit(folder, "generation_config.json", json.dumps({**said, "eos_token_id": 7}).encode())
    assert "eos_token_id is 7, expected [1017, 1020]" in last(verify(folder, told))
    edit(folder, "generation_config.json", json.dumps(said).encode())
    words = folder / "openvino_tokenizer.bin"
    kept = words.read_bytes()
    edit(folder, words.name, kept.replace(b"capital", b"capitol"))
    assert "OpenVINO stops (" in last(verify(folder, told))
    edit(folder, words.name, kept)
    # planted: another epsilon, which no number shows
    whole = (folder / DATA).read_bytes()
    edit(folder, DATA, changed(folder, "f32", 1e-6, 2e-6))
    assert "epsilon of its norms is [" in last(verify(folder, told))
    # planted: a layer's weights change their sign
    held, middle = bytearray(whole), len(whole) // 2 // 4 * 4
    for at in range(middle, middle + (64 << 10), 4):
        held[at + 3] ^= 0x80
    edit(folder, DATA, bytes(held))
    said = last(verify(folder, told))
    assert re.search("prompts continue as transformers|mean_kl is", said), said


@pytest.mark.slow
def test_another_window_is_refused(tiny, build, verify, peers, edit):
    """Cohere 2: a window of 16 in most layers."""
    checkpoint = tiny("cohere2")
    folder, told = build(checkpoint), peers(checkpoint, way="upstream")
    done = verify(folder, told)
    assert done.returncode == 0, done.stderr
    edit(folder, DATA, changed(folder, "i64", -16, -32))
    assert "no window of 16 in its graph" in last(verify(folder, told))


@pytest.mark.slow
def test_int4_is_held_to_its_limit_names_no_place_and_asks_nobody(build, verify, peers):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        asked = {"https_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        folder = build(DEMO, "--weights=int4", environment=asked)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    told = peers(DEMO, way="upstream")
    assert (folder / DATA).stat().st_size < 4e6  # of 23e6
    assert not any("/tmp" in path.read_text("latin-1") for path in folder.glob("*.json"))
    done = verify(folder, told, "--weights=int4")
    assert done.returncode == 0, done.stderr
    said = last(verify(folder, told, "--weights=int8"))
    assert re.search("mean_kl is 0.0.* expected at most 0.003", said)


@pytest.mark.slow
def test_what_stops_the_exporter_is_one_line(tiny, step, tmp_path):
    checkpoint = tiny("qwen3")
    shard = checkpoint / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4000])
    words = ("--checkpoint", checkpoint, "--openvino", tmp_path / "m.openvino")
    said = last(step("optimum-intel", "build_openvino.py", *words))
    assert f"{checkpoint}: optimum-intel stops (" in said
    assert not [*tmp_path.glob("*m.openvino*")]


def test_an_ir_that_asks_for_more_than_its_server_gives_is_refused(monkeypatch, tmp_path):
    """As Mamba's does, for cache_position."""
    ports = [SimpleNamespace(names={"input_ids"}), SimpleNamespace(names={"cache_position"})]
    model = SimpleNamespace(inputs=ports)
    openvino = SimpleNamespace(compile_model=lambda path, device, settings: model)
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    with pytest.raises(Refused, match="asks for cache_position, expected no more than"):
        session.Session(tmp_path, {})
