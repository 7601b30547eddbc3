"""What is said before anything is built: memory, disk, time, GPUs; and rolling disk."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
import yaml

import checkpoints
from conftest import IRPA, ROOT
from ingot.checkpoint.config import read_config
from ingot.driver.forecast import gpu_memory
from ingot.driver.forecast.schedule import Task, schedule
from ingot.driver.formats.model import parameters
from ingot.iree import tensor_parallel
from ingot.store.records import Store
from standin_hub import Hub

GIB = 1 << 30
CATALOGUE = yaml.safe_load((ROOT / "models.yaml").read_text())["models"]


@pytest.fixture
def config(tmp_path):
    def read(name):
        (tmp_path / "config.json").write_text(json.dumps(checkpoints.public_config(name)))
        return read_config(tmp_path / "config.json")

    return read


# Guide 003's tables: weights in GB, cache of 128 k tokens in GiB, H100s for the weights and for all


@pytest.mark.parametrize(
    "name, nominal, kv_heads, weights, cache, gpus, gpus_full",
    [("llama70b", 70, 8, 140, 39.06, 2, 3), ("llama405b", 405, 16, 810, 123.05, 11, 12)],
)
def test_the_guides_tables(name, nominal, kv_heads, weights, cache, gpus, gpus_full, config):
    found = gpu_memory.needs(config(name), 128_000, 80 * GIB, nominal, kv_heads)
    assert found.weights / 1e9 == weights
    assert round(found.cache / GIB, 2) == cache
    assert (found.gpus_for_weights, found.gpus_for_all) == (gpus, gpus_full)


def test_the_numbers_of_the_real_models(config):
    assert parameters(config("llama8b")) == 8_030_261_248
    assert parameters(config("llama70b")) == 70_553_706_496
    assert parameters(config("llama405b")) == 405_853_388_800
    assert (
        gpu_memory.kv_per_token(config("llama405b")) == 504 * 1024
    )  # half of the guide's: 8 KV heads


@pytest.mark.parametrize(
    "name, tp, pp, weights, kv, tokens",
    [
        ("llama405b", 8, 2, 47.25, 32_256, 678_714),
        ("llama405b", 16, 1, 47.75, 64_512, 331_101),
        ("llama70b", 2, 1, 65.71, 163_840, 12_651),
        ("llama70b", 4, 1, 32.86, 81_920, 455_921),
        ("llama8b", 1, 1, 14.96, 131_072, 431_574),
    ],
)
def test_layouts_as_computed_by_hand(name, tp, pp, weights, kv, tokens, config):
    found = gpu_memory.gpu_layout(config(name), tp, pp, gpu_memory.VLLM, int(79.6 * GIB), 131_072)
    assert round(found.weights / GIB, 2) == weights
    assert found.kv_per_token == kv
    assert abs(found.tokens - tokens) < 30
    assert found.fits == (tokens >= 131_072)


def test_a_rank_of_an_irpa_set_holds_what_the_layout_says(config):
    c = config("llama8b")
    from ingot.checkpoint import llama

    cuts = tensor_parallel.splits([(p.name, p.type.name, p.shape) for p in llama.specs(c, "f16")])
    entries = [tensor_parallel.rank_layout(cuts, 8, rank).entries for rank in (0, 7)]
    replicated = {e.name: e.nbytes for e in entries[0] if ".shard." not in e.name}
    held = sum(e.nbytes for e in entries[1]) + sum(replicated.values())
    assert gpu_memory.gpu_layout(c, 8, 1, gpu_memory.SHORTFIN, 80 * GIB, 8192).weights == held


def test_illegal_layouts_say_why(config):
    c = config("llama8b")
    three = gpu_memory.gpu_layout(c, 3, 1, gpu_memory.VLLM, 80 * GIB, 1)
    assert three.wrong == "32 attention heads do not divide by 3"
    sixteen = gpu_memory.gpu_layout(c, 16, 1, gpu_memory.SHORTFIN, 80 * GIB, 1)
    assert sixteen.wrong == "8 KV heads do not divide by 16"
    assert gpu_memory.gpu_layout(c, 16, 1, gpu_memory.VLLM, 80 * GIB, 1).wrong is None
    rows = gpu_memory.layouts(c, gpu_memory.SHORTFIN, 80 * GIB, 1)
    assert [row.tp for row in rows if not row.wrong] == [1, 2, 4, 8]


# The course of a build


def test_rolling_disk_drops_an_intermediate_when_its_last_reader_is_done():
    def jobs():
        return [
            Task("a.gguf", [], {"a.gguf": 100}, 10, 5),
            Task("a.irpa", ["a.gguf"], {"a.irpa": 100}, 10, 5),
            Task("a_tp2.irpa", ["a.irpa"], {"a_tp2.irpa": 100}, 10, 5),
        ]

    everything = schedule(jobs(), {"a_tp2.irpa"}, 2, rolling=False)
    rolling = schedule(jobs(), {"a_tp2.irpa"}, 2, rolling=True)
    assert (everything.seconds, everything.disk, everything.kept) == (30, 300, 300)
    assert (rolling.seconds, rolling.disk, rolling.kept) == (30, 200, 100)


def test_jobs_that_run_at_once_add_their_memory():
    jobs = [Task(name, [], {name: 1}, 10, 5) for name in "abc"]
    found = schedule(jobs, set("abc"), 2, rolling=False)
    assert (found.memory, found.seconds) == (10, 20)


def test_what_a_bundle_links_is_not_freed():
    jobs = [
        Task("m.irpa", [], {"m.irpa": 100}, 1, 1),
        Task("m.shortfin", ["m.irpa"], {"m.shortfin": 1}, 1, 1, links=True),
    ]
    assert schedule(jobs, {"m.shortfin"}, 1, rolling=True).kept == 101


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
        bodies = {
            r[1].rpartition("/")[2] for r in hub.requests if r[0] == "GET" and "/resolve/" in r[1]
        }
    assert bodies == {"config.json"}
    build, serve = found["build"], found["serving"][0]
    shard = next(j for j in build["jobs"] if j["rule"] == "shard_irpa_tp8")
    assert abs(shard["disk"] - 811.7e9) < 0.1e9
    assert abs(build["keep"]["all"]["download"] - 811.7e9) < 0.1e9
    assert build["keep"]["all"]["disk"] > 1.6e12
    assert serve["asked_tp"] == 8 and serve["hardware"] == "gfx942"
    assert [row["tp"] for row in serve["layouts"]["shortfin"] if row["fits"]] == [8]


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


@pytest.mark.slow
def test_the_peak_of_rolling_disk_is_what_the_plan_said(clone, build, ingot, store):
    folder = clone("a")
    targets = ["artifacts/demo.f32.irpa", "artifacts/demo_tp2.irpa"]
    words = ("--cores", 1, "--json")
    said = asked(ingot("plan", *targets, *words, cwd=folder))["build"]["keep"]["targets"]
    options = ("--cores", 1, "--config", "keep=targets")
    peak = measured(lambda: build(folder, *options, "--", *targets), store, folder / "artifacts")
    assert abs(peak - said["disk"]) < 0.15 * said["disk"]


def measured(work, *folders: Path) -> int:
    """The most that lay below `folders` while `work` ran, each file once, however many its names."""
    most, done = 0, threading.Event()

    def watch():
        nonlocal most
        while not done.is_set():
            sizes = {}
            for folder in folders:
                for path in folder.rglob("*"):
                    with contextlib.suppress(OSError):
                        state = path.lstat()
                        sizes[state.st_ino] = state.st_blocks * 512
            most = max(most, sum(sizes.values()))
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return most
