"""A model that Ingot has no table of: GenAI's builder writes ONNX, and numbers say if it is the model."""

import errno
import json
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.formats.onnx import builder
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.upstream import in_its_words
from ingot.parity import in_genai

sys.path.insert(0, str(ROOT / "docs"))
import architectures

PLAIN = ("-p", "fp32", "-e", "cpu")


@pytest.fixture
def built(tiny, step, peers, tmp_path):
    """built("qwen3") is the folder of a tiny checkpoint of that family; and transformers' part of it."""

    def run(kind):
        checkpoint, folder = tiny(kind), tmp_path / "m.onnx"
        done = step("genai", "build_onnx.py", "--checkpoint", checkpoint, "--onnx", folder)
        assert done.returncode == 0, done.stderr
        return folder, peers(checkpoint, way="upstream")

    return run


@pytest.fixture
def verify(step, tmp_path):
    def run(folder, told):
        record = tmp_path / "m.onnx.verified.json"
        return step("onnx", "verify_built_onnx.py", "--onnx", folder, "--record", record, *told)

    return run


def last(done):
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_the_architectures_are_those_that_the_builder_asks_for():
    assert architectures.BUILDER.read_text() == architectures.builder()
    assert {"Qwen3ForCausalLM", "GptOssForCausalLM"} < builder.ARCHITECTURES


@pytest.mark.slow
def test_a_family_without_a_table_is_built_as_the_builders_command_does_and_verified(
    built, verify, python, edit, tmp_path
):
    folder, told = built("qwen3")
    done = verify(folder, told)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "m.onnx.verified.json").read_bytes())
    checks = record["checks"]
    assert record["way"].startswith("upstream: onnxruntime-genai")
    assert checks["numbers"]["mean_kl"] < 1e-6 and checks["numbers"]["same_top"] == 1
    for found in (checks, checks["onnxruntime_genai"]):
        assert found["greedy_equal"] + found["greedy_ties"] == 24
    words = ("-i", tmp_path / "tiny/qwen3", "-o", tmp_path / "theirs", "-c", tmp_path / "cache")
    subprocess.run(
        [python("genai"), "-m", "onnxruntime_genai.models.builder", *PLAIN, *words],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}, capture_output=True, check=True,
    )  # fmt: skip
    for path in (tmp_path / "theirs").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    # planted: a token that a prompt ends in is called padding, and GenAI goes on from the one before
    code = (
        "import numpy, sys; d = numpy.load(sys.argv[1]); "
        "print(d['prompts'][d['prompt_lengths'][0] - 1])"
    )
    words = [python("onnx"), "-c", code, told[1]]
    end = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    config = (folder / "genai_config.json").read_text()
    other = re.sub(r'"pad_token_id": \d+', f'"pad_token_id": {end}', config)
    assert other != config
    edit(folder, "genai_config.json", other.encode())
    assert "prompts continue as transformers" in last(verify(folder, told))
    edit(folder, "genai_config.json", config.encode())
    # planted: a layer's weights change their sign; the sums follow
    data = folder / "model.onnx.data"
    held = bytearray(data.read_bytes())
    middle = len(held) // 2 // 4 * 4
    for at in range(middle, middle + (64 << 10), 4):
        held[at + 3] ^= 0x80
    edit(folder, "model.onnx.data", bytes(held))
    said = last(verify(folder, told))
    assert re.search("prompts continue as transformers|mean_kl is", said), said


@pytest.mark.slow
def test_a_model_with_a_window_runs_and_another_window_is_refused(built, verify, edit):
    """gpt-oss: experts, sinks, a window of 16 in half the layers."""
    folder, told = built("gpt_oss")
    done = verify(folder, told)
    assert done.returncode == 0, done.stderr
    graph = (folder / "model.onnx").read_bytes()
    named = b"local_window_size"
    at = graph.index(named + b"\x18\x10")  # field 3 of an attribute: 16
    where = at + len(named) + 1
    edit(folder, "model.onnx", graph[:where] + b"\x20" + graph[where + 1 :])
    assert "local_window_size of its graph is [" in last(verify(folder, told))


@pytest.mark.slow
def test_what_the_builder_writes_wrong_is_refused(built, verify):
    """Its OLMo loads, and computes another model."""
    said = last(verify(*built("olmo")))
    assert re.search(r": [0-3] of 24 prompts continue as transformers does", said), said


@pytest.mark.slow
def test_what_stops_the_builder_is_one_line(tiny, step, tmp_path):
    checkpoint = tiny("qwen3")
    shard = checkpoint / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4000])
    words = ("--checkpoint", checkpoint, "--onnx", tmp_path / "m.onnx")
    said = last(step("genai", "build_onnx.py", *words))
    assert f"{checkpoint}: onnxruntime-genai's builder stops (" in said
    assert not [*tmp_path.glob("*m.onnx*")]


def test_what_stops_a_tool_is_one_line_and_what_stops_the_machine_is_no_fault_of_it(tmp_path):
    checkpoint = Checkpoint([tmp_path])
    said = f"{tmp_path}: the tool stops \\(ValueError: a b\\), expected a checkpoint"
    with pytest.raises(Refused, match=said), in_its_words("the tool", checkpoint, tmp_path):
        raise ValueError("a\nb")
    with pytest.raises(OSError, match="full"), in_its_words("the tool", checkpoint, tmp_path):
        raise OSError(errno.ENOSPC, "full")


def test_a_config_for_genai_that_says_another_end_is_refused(tmp_path):
    said = {"context_length": 512, "vocab_size": 1088, "eos_token_id": [2, 1]}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": said}))
    in_genai.as_read(tmp_path, {"context": 512, "vocab": 1088}, [1, 2])
    with pytest.raises(Refused, match=r"eos_token_id is \[1, 2\], expected \[1, 3\]"):
        in_genai.as_read(tmp_path, {"context": 512, "vocab": 1088}, [1, 3])
    said["eos_token_id"] = 2  # one end need be in no list
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": said}))
    in_genai.as_read(tmp_path, {"context": 512, "vocab": 1088}, [2])
    with pytest.raises(Refused, match=r"eos_token_id is \[2\], expected \[1, 2\]"):
        in_genai.as_read(tmp_path, {"context": 512, "vocab": 1088}, [1, 2])
