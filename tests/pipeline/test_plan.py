"""What is said before anything is built: memory, disk, time, GPUs; and rolling disk."""

import contextlib
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

import checkpoints
from conftest import IRPA, ROOT
from fake_hub import Hub
from ingot.base import digest
from ingot.driver.catalogue import schema
from ingot.driver.release import on_record
from ingot.store.records import Store

GIB = 1 << 30
CATALOGUE = schema.read(ROOT / schema.FILE)["models"]


def asked(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plan_of_the_demo_lists_its_jobs_and_draws_the_disk(ingot, tmp_path):
    done = ingot("plan", "artifacts/demo_tp2.shortfin", "--svg", "disk.svg")
    assert done.returncode == 0, done.stderr
    assert "artifacts/demo_tp2.vmfb" in done.stdout and "disk, --config keep=targets" in done.stdout
    assert (tmp_path / "disk.svg").read_text().startswith("<svg ")
    found = asked(ingot("plan", "artifacts/demo_tp2.shortfin", "--json"))
    irpa = next(j for j in found["build"]["jobs"] if j["rule"] == "shard_irpa_tp2")
    assert irpa["disk"] == 11_591_680  # exactly what the set takes: nothing here is guessed


def test_a_plan_of_a_repository_counts_the_engine_that_it_holds_and_the_gpus(ingot):
    found = asked(ingot("plan", "artifacts/demo_tp2.triton", "--json"))["build"]
    sizes = {job["rule"]: job["disk"] for job in found["jobs"]}
    assert found["keep"]["targets"]["kept"] == sizes["build_engine"] + sizes["assemble_triton"]
    assert {job["rule"]: job["gpus"] for job in found["jobs"] if job["gpus"]} == {"build_engine": 1}


def test_a_plan_learns_from_what_was_built(clone, build, ingot, store):
    folder = clone("a")
    build(folder)
    record = next(Store(store).records("gguf_to_irpa"))
    cost = Store(store).config(record)["cost"]
    assert cost["bytes"] == (folder / IRPA).stat().st_size
    assert (
        10 < cost["peak_rss_mb"] < 100
    )  # its own report: sampling sees nothing of a tenth of a second
    found = asked(ingot("plan", "artifacts/demo.bf16.irpa", "--json"))
    job = next(j for j in found["build"]["jobs"] if j["rule"] == "gguf_to_irpa")
    assert abs(job["seconds"] - cost["seconds"]) < 0.01
    assert abs(job["memory"] - cost["peak_rss_mb"] * 1e6) < 1e5


def test_a_plan_refuses_what_cannot_be_with_the_nearest(ingot):
    done = ingot("plan", "artifacts/demo_tp3.vmfb")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "tensor parallel size 3, expected one of 1, 2, 4, 8 for demo" in done.stderr
    assert "artifacts/demo_tp2.vmfb" in done.stderr


def test_a_plan_of_a_model_that_is_not_here_fetches_its_config_alone(ingot, tmp_path, monkeypatch):
    entry = CATALOGUE["llama405b-instruct"]
    name = f"{entry['hub']}@{entry['revision']}"
    checkpoints.weightless(tmp_path / "hub" / name, "llama405b", entry["shards"])
    monkeypatch.setenv("HF_TOKEN", "secret")
    with Hub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = asked(ingot("plan", "artifacts/llama405b-instruct_tp8.shortfin", "--json"))
        record = asked(
            ingot("plan", "artifacts/llama405b-instruct_tp8.irpa.verified.json", "--json")
        )
        bodies = {
            r[1].rpartition("/")[2] for r in hub.requests if r[0] == "GET" and "/resolve/" in r[1]
        }
    assert bodies == {"config.json"}
    build, serve = found["build"], found["serving"][0]
    shard = next(j for j in build["jobs"] if j["rule"] == "shard_irpa_tp8")
    assert abs(shard["disk"] - 811.7e9) < 0.1e9
    assert abs(build["keep"]["all"]["download"] - 811.7e9) < 0.1e9
    assert build["keep"]["all"]["disk"] > 1.6e12
    for one in (build, record["build"]):
        assert one["stream"]["reads"] == 1 and one["stream"]["disk"] < 1.05 * shard["disk"]
    assert serve["asked_tp"] == 8 and serve["hardware"] == "gfx942"
    assert [row["tp"] for row in serve["layouts"]["shortfin"] if row["fits"]] == [8]


def test_a_plan_of_quantised_weights_counts_their_bytes(ingot, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plain, fp8 = (
        asked(ingot("plan", f"artifacts/demo_tp1{word}.vllm-slurm", "--json"))["serving"][0]
        for word in ("", ".fp8")
    )
    whole, less = (one["layouts"]["vllm"][0] for one in (plain, fp8))
    assert 0.5 < less["weights"] / whole["weights"] < 0.7 and less["tokens"] > whole["tokens"]
    assert fp8["needs"]["weights"] == less["weights"]
    block = asked(ingot("plan", "artifacts/demo.fp8_block.safetensors", "--json"))["serving"][0]
    cut = {row["tp"]: row["wrong"] for row in block["layouts"]["vllm"] if row["pp"] == 1}
    assert list(block["layouts"]) == ["vllm"] and cut[1] is None and "fp8_block" in cut[4]
    said = ingot("plan", "artifacts/demo.q4_k_m.gguf").stdout
    assert "ingot fit demo" in said and "per GPU" not in said


# Rolling disk


def blobs(store):
    return {path.name for path in store.glob("blobs/sha256/*")}


def test_keep_targets_leaves_the_targets_and_the_records(clone, build, store):
    folder = clone("a")
    build(folder, "--config", "keep=targets", "--", IRPA)
    assert not os.path.lexists(folder / "artifacts/demo.gguf")
    large = [path for path in store.glob("blobs/sha256/*") if path.stat().st_size > 1e6]
    assert [path.stat().st_size for path in large] == [(folder / IRPA).stat().st_size]
    assert "Nothing to be done" in build(folder, "--config", "keep=targets", "--", IRPA)
    said = build(folder, "--", "artifacts/demo.gguf")  # made anew, since its bytes are gone
    assert "safetensors_to_gguf" in said and (folder / "artifacts/demo.gguf").exists()


def test_keep_targets_leaves_what_a_rule_without_output_asks_for(clone, build):
    folder = clone("a")
    text = (folder / "Snakefile").read_text()
    text += f'\n\nrule mine:\n    input:\n        "{IRPA}",\n'
    (folder / "Snakefile").write_text(text)
    build(folder, "--config", "keep=targets", "--", "mine")
    assert (folder / IRPA).exists() and not os.path.lexists(folder / "artifacts/demo.gguf")


def test_keep_targets_takes_nothing_that_was_there_before(clone, build, store):
    first, second = clone("a"), clone("b")
    build(first, "--", "artifacts/demo.gguf")
    before = blobs(store)
    build(second, "--config", "keep=targets", "--", IRPA)
    assert before <= blobs(store)
    assert (first / "artifacts/demo.gguf").stat().st_size > 1e6


def test_what_the_store_would_copy_is_in_artifacts_alone(clone, build, store, monkeypatch):
    """onnx reads no file of two names, so that the store had a second one of an ONNX folder's weights."""
    folder, target = clone("a"), "artifacts/demo.int8.onnx"
    build(folder, "--config", "keep=targets", "--", target)
    data = max((folder / target).iterdir(), key=lambda path: path.stat().st_size)
    blob = store / "blobs/sha256" / digest.read(data)
    large = [path for path in blob.parent.iterdir() if path.stat().st_size >= 1 << 20]
    shares = digest.cloned(
        data, folder / "clone"
    )  # then a copy takes nothing, and the store has one
    assert bool(large) == shares
    for path in large:
        path.unlink()
    for words in ((), ("--config", "keep=targets")):
        assert "Nothing to be done" in build(folder, *words, "--", target)
    (folder / ".ingot/notes").rename(folder / "notes")  # by which its step was known
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    said = build(folder, "--", target)
    assert "left the store" in said and list((folder / "artifacts").glob("*.yours-*")), said
    assert blob.exists()
    blob.unlink()
    monkeypatch.chdir(folder)
    found = on_record.OnRecord(ROOT, Store(), [target])
    of_target, record = found.output, {"title": "r", "digest": Store().put_bytes(b"{}")}
    found.output = lambda path: of_target(path) if path == target else record
    found.artifact(target, folder).whole()
    assert digest.read(blob) == blob.name and data.stat().st_nlink == 1
    shutil.rmtree(folder / target)
    assert "restore" in build(folder, "--", target)


@pytest.mark.slow
def test_the_peak_of_rolling_disk_is_what_the_plan_said(clone, build, ingot, store):
    folder = clone("a")
    targets = ["artifacts/demo.f32.irpa", "artifacts/demo_tp2.irpa"]
    words = ("--cores", 1, "--json")
    said = asked(ingot("plan", *targets, *words, cwd=folder))["build"]["keep"]["targets"]
    options = ("--cores", 1, "--config", "keep=targets")
    peak = 0
    for _ in range(3):  # of a busy machine the looks may be too far apart to see it
        found = measured(
            lambda: build(folder, *options, "--", *targets), store, folder / "artifacts"
        )
        if (peak := max(peak, found)) > 0.85 * said["disk"]:
            break
        for path in (store, *(folder / "artifacts").glob("demo*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert abs(peak - said["disk"]) < 0.15 * said["disk"]


def measured(work, *folders: Path) -> int:
    """The most that lay below `folders` while `work` ran, each file once, however many its names."""
    most, done = 0, threading.Event()

    def watch():
        nonlocal most
        before = 0
        while not done.is_set():
            sizes = {}
            for folder in folders:
                for path in folder.rglob("*"):
                    with contextlib.suppress(OSError):
                        state = path.lstat()
                        sizes[state.st_ino] = state.st_blocks * 512
            # a look takes a while: what goes and what comes meanwhile may both be in one, not in two
            now = sum(sizes.values())
            most, before = max(most, min(now, before)), now
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return most
