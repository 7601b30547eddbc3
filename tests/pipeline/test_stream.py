"""`ingot stream`: all that is written from a checkpoint, in one read of the hub, without it on the disk."""

import json
import os
import subprocess
import time

import pytest
import yaml

import adapters
import checkpoints
from conftest import ROOT
from fake_hub import COMMIT, Hub
from ingot.base import digest, processes
from ingot.base.entry import lives

ENDS = (
    ".gguf", "_tp2.irpa", ".q4_k_m.gguf", "_tp2.trtllm-ckpt", ".int8.onnx", ".fp8.safetensors",
    ".4bit.mlx", ".onnx", ".irpa",
)  # fmt: skip
TARGETS = [*(f"artifacts/small{end}" for end in ENDS), "artifacts/tuned.gguf"]
RECORDS = [f"artifacts/small_tp2.{name}.verified.json" for name in ("irpa", "trtllm-ckpt")]
HEADERS = 1 << 16  # bytes that are asked for of each shard before all others, at most


@pytest.fixture
def hub(tmp_path):
    """A model of seven megabytes in two shards."""
    checkpoints.llama31(tmp_path / "hub/org/small", tame=True, num_hidden_layers=6)
    entry = {
        "hub": "org/small", "revision": COMMIT, "shards": 2, "name": "small", "tp": [1, 2],
        "pre_tokenizer": "llama-bpe", "architecture": "LlamaForCausalLM", "hardware": "cpu",
    }  # fmt: skip
    lora = adapters.pair(tmp_path / "hub/org/small", adapters.MODULE)
    adapters.saved(tmp_path / "lora", lora)
    tuned = {"adapter": {"base": "small", "lora": str(tmp_path / "lora")}}
    with Hub(tmp_path / "hub") as running:
        for name in ("w", "other"):
            (tmp_path / name).mkdir()
            said = yaml.safe_dump({"models": {"small": entry, "tuned": tuned}})
            (tmp_path / name / "models.local.yaml").write_text(said)
        yield running


@pytest.fixture
def words(hub, tmp_path):
    """What a process of `ingot stream` is made of, in pieces of half a megabyte."""

    def run(*targets, store="store"):
        environment = {"INGOT_STORE": str(tmp_path / store), "HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
        return {
            "args": [ROOT / ".venv/bin/ingot", "stream", "--window", "2", *targets],
            "cwd": tmp_path / "w", "env": os.environ | environment, "text": True,
            "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
        }  # fmt: skip

    return run


@pytest.fixture
def stream(words):
    def run(*targets, fails=False, **more):
        done = subprocess.run(**words(*targets, **more), timeout=600, check=False)
        assert (done.returncode != 0) == fails and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    return run


@pytest.fixture
def gguf(step, tmp_path):
    """What the step writes of the same checkpoint where it is whole."""

    def run():
        path = tmp_path / "whole.gguf"
        done = step(
            "convert", "safetensors_to_gguf.py", "--checkpoint", tmp_path / "hub/org/small",
            "--gguf", path, "--dtype", "f16", "--name", "small", "--pre-tokenizer", "llama-bpe",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return path

    return run


def held(folder):
    """What stands in artifacts/ but for the checkpoint, by path."""
    found = [path for path in (folder / "artifacts").rglob("*") if path.is_file()]
    paths = [path for path in found if "small.hf" not in path.parts]
    return {str(path.relative_to(folder)): digest.read(path) for path in paths}


def keys(store):
    return sorted(str(path.relative_to(store)) for path in store.glob("actions/*/*"))


def large(hub, tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "hub/org/small").glob("*.safetensors"))


@pytest.mark.slow
def test_what_is_streamed_is_what_is_built_from_one_read(hub, stream, snakemake, tmp_path):
    wanted = [*TARGETS, *RECORDS]
    said = stream(*wanted)
    assert "10 artifacts from one read of 2 shards" in said, (
        "M.irpa is made of M.gguf, records of digests"
    )
    asked = large(hub, tmp_path)
    assert asked <= hub.sent <= asked + 2 * HEADERS + 100_000, "small files and headers beside"
    there = {path.name for path in (tmp_path / "w/artifacts/small.hf").iterdir()}
    assert not [name for name in there if "safetensors" in name and "index" not in name], there
    done = snakemake(
        tmp_path / "other", "--", *wanted,
        environment={
            "INGOT_STORE": str(tmp_path / "other-store"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert held(tmp_path / "w") == held(tmp_path / "other")
    assert keys(tmp_path / "store") == keys(tmp_path / "other-store")
    sent = hub.sent
    assert "Nothing to be done" in stream(*wanted) and hub.sent == sent
    files = (tmp_path / "w/artifacts/small.onnx").iterdir()
    heavy = [path for path in files if path.stat().st_size > 1 << 20]
    blobs = {path.name for path in (tmp_path / "store/blobs/sha256").iterdir()}
    if not digest.cloned(heavy[0], tmp_path / "clone"):  # else a copy takes nothing
        assert not {*map(digest.read, heavy)} & blobs


@pytest.mark.slow
def test_what_is_made_of_other_artifacts_is_streamed_in_a_second_read(
    hub, stream, snakemake, tmp_path
):
    local = tmp_path / "w/models.local.yaml"
    own = yaml.safe_load(local.read_text())
    for name in ("w", "other"):
        (tmp_path / name / "text.txt").write_text("words " * 1000)
        own["models"]["small"]["imatrix"] = "text.txt"
        (tmp_path / name / "models.local.yaml").write_text(yaml.safe_dump(own))
    target = "artifacts/small.q4_k_m.gguf"  # by an importance matrix, of the GGUF file
    said = stream(target)
    assert "1 artifact from one read of 2 shards, 6.99 MB; 1 more after it" in said, said
    assert said.count("1 artifact from one read of 2 shards, 6.99 MB\n") == 1, said
    asked = 2 * large(hub, tmp_path)
    assert asked <= hub.sent <= asked + 4 * HEADERS + 100_000
    assert not [*(tmp_path / "w/artifacts/small.hf").glob("model*.safetensors")]
    hub_of = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    other = {"INGOT_STORE": str(tmp_path / "other-store")} | hub_of
    done = snakemake(tmp_path / "other", "--", target, environment=other)
    assert done.returncode == 0, done.stderr
    assert held(tmp_path / "w") == held(tmp_path / "other")
    assert keys(tmp_path / "store") == keys(tmp_path / "other-store")


@pytest.mark.slow
def test_a_killed_stream_goes_on(hub, words, stream, gguf, tmp_path):
    two = TARGETS[:2]
    hub.faults["slow"] = 1.0  # second a megabyte: seven in all
    process = subprocess.Popen(**words(*two), start_new_session=True)
    come = lambda: [*tmp_path.glob("w/artifacts/small.hf/.coming/*/come")]  # noqa: E731
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (found := come()) and json.loads(found[0].read_text())["whole"] == 1:
            break
        time.sleep(0.05)
    steps = processes.below(process.pid)
    process.kill()  # its steps notice, and the next stream waits for their end
    process.wait()
    assert any(lives(str(pid)) for pid in steps)
    assert come() and not held(tmp_path / "w").keys() & {*two}, "nothing half-written has its name"
    hub.faults.clear()
    time.sleep(1)  # the hub notes a request once it has answered it, or later
    before = [one for one in hub.requests if "/large/" in one[1] and one[2] is None]
    stream(*two)
    again = [one for one in hub.requests if "/large/" in one[1] and one[2] is None][len(before) :]
    # none where its steps had all of it before they noticed
    assert {one[1].rpartition("/")[2] for one in again} <= {"model-00002-of-00002.safetensors"}
    process.communicate()
    assert not come()
    assert (tmp_path / "w" / TARGETS[0]).read_bytes() == gguf().read_bytes()


@pytest.mark.slow
def test_bytes_that_are_not_the_hubs_are_in_no_artifact(hub, stream, gguf, digests, tmp_path):
    two = (TARGETS[0], "artifacts/small.digests.json")
    hub.faults["spoilt"] = True
    said = stream(*two, fails=True)
    assert "not what the hub says, 3 times" in said.splitlines()[-1]
    assert not held(tmp_path / "w").keys() & {*two}
    hub.faults["spoilt"] = [True, 1]
    assert "not what the hub says; again" in stream(*two)
    _, found = digests(tmp_path / "hub/org/small")
    assert (tmp_path / "w" / two[1]).read_bytes() == found.read_bytes()
    assert (tmp_path / "w" / TARGETS[0]).read_bytes() == gguf().read_bytes()


def test_what_wants_the_whole_checkpoint_is_refused(stream, tmp_path):
    said = stream("artifacts/small.gguf", "artifacts/small.gguf.verified.json", fails=True)
    assert "reads the whole checkpoint at once" in said.splitlines()[-1]
    said = stream("artifacts/small.nvfp4.safetensors", fails=True)
    assert "quantize_safetensors reads the whole checkpoint at once" in said.splitlines()[-1]


@pytest.mark.slow
def test_a_step_that_fails_ends_the_others_and_says_why(hub, stream, tmp_path):
    config = tmp_path / "hub/org/small/config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"intermediate_size": 400}))
    said = stream(*TARGETS[:2], fails=True)
    assert "has shape [384, 256], expected [400, 256]" in said.splitlines()[-1]
    assert not held(tmp_path / "w")
