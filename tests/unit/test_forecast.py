"""What a build and serving take, computed: layouts of GPUs, the course of a build."""

import hashlib
import json
import math
import os
import random

import pytest

import checkpoints
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.job import Graph, Job, Output
from ingot.driver.catalogue.model import Model
from ingot.driver.forecast import ending, past
from ingot.driver.forecast.costs import Forecast
from ingot.driver.forecast.schedule import Task, length, schedule, tasks_of
from ingot.formats.iree import tensor_parallel
from ingot.model import gpu_layout
from ingot.model.config import read_config
from ingot.model.specs import parameters, specs_of
from ingot.store import blobs
from ingot.store.records import Action, Store

GIB = 1 << 30
CATALOGUE = schema.read(ROOT / schema.FILE)


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
    found = gpu_layout.needs(config(name), 128_000, 80 * GIB, nominal, kv_heads)
    assert found.weights / 1e9 == weights
    assert round(found.cache / GIB, 2) == cache
    assert (found.gpus_for_weights, found.gpus_for_all) == (gpus, gpus_full)


def test_the_numbers_of_the_real_models(config):
    assert parameters(config("llama8b")) == 8_030_261_248
    assert parameters(config("llama70b")) == 70_553_706_496
    assert parameters(config("llama405b")) == 405_853_388_800
    assert (
        gpu_layout.kv_per_token(config("llama405b")) == 504 * 1024
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
    found = gpu_layout.gpu_layout(config(name), tp, pp, gpu_layout.VLLM, int(79.6 * GIB), 131_072)
    assert round(found.weights / GIB, 2) == weights
    assert found.kv_per_token == kv
    assert abs(found.tokens - tokens) < 30
    assert found.fits == (tokens >= 131_072)


def test_a_rank_of_an_irpa_set_holds_what_the_layout_says(config):
    c = config("llama8b")
    cuts = tensor_parallel.splits([(p.name, p.type.name, p.shape) for p in specs_of(c, "f16")])
    entries = [tensor_parallel.rank_layout(cuts, 8, rank).entries for rank in (0, 7)]
    replicated = {e.name: e.nbytes for e in entries[0] if ".shard." not in e.name}
    held = sum(e.nbytes for e in entries[1]) + sum(replicated.values())
    assert gpu_layout.gpu_layout(c, 8, 1, gpu_layout.SHORTFIN, 80 * GIB, 8192).weights == held


def test_illegal_layouts_say_why(config):
    c = config("llama8b")
    three = gpu_layout.gpu_layout(c, 3, 1, gpu_layout.VLLM, 80 * GIB, 1)
    assert three.wrong == "32 attention heads are not divisible by 3"
    sixteen = gpu_layout.gpu_layout(c, 16, 1, gpu_layout.SHORTFIN, 80 * GIB, 1)
    assert sixteen.wrong == "8 KV heads are not divisible by 16"
    assert gpu_layout.gpu_layout(c, 16, 1, gpu_layout.VLLM, 80 * GIB, 1).wrong is None
    rows = gpu_layout.layouts(c, gpu_layout.SHORTFIN, 80 * GIB, 1)
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


def test_jobs_wait_for_memory_and_what_takes_more_than_there_is_runs_alone():
    jobs = [
        Task(name, [], {name: 1}, 10, size) for name, size in zip("abc", (6, 6, 2), strict=True)
    ]
    found = schedule(jobs, set("abc"), 2, rolling=False, most=9)
    assert (found.memory, found.seconds, found.started) == (8, 20, {"a": 0, "c": 0, "b": 10})
    huge = [Task("d", [], {"d": 1}, 10, 60), *jobs]
    found = schedule(huge, set("abcd"), 3, rolling=False, most=9)
    assert (found.memory, found.seconds) == (60, 30)


def test_jobs_that_must_run_in_turn_end_no_sooner():
    two = [Job("r", outputs=(Output("", str(n)),)) for n in range(2)]
    for share, wanted in ((0.4, 100), (0.9, 180), (3.0, 200)):
        found = length(Graph(two), two, lambda job: 100.0, 8, lambda job, share=share: share)
        assert found == wanted


def test_the_end_of_a_run_counts_what_its_jobs_have_taken_and_their_memory(monkeypatch):
    class Costs:
        known = True

        def of(self, job):
            return Forecast("s", "", 1.0, 100.0, 6 * 10**8, {}) if self.known else None

    monkeypatch.setattr(ending.time, "time", lambda: 1000.0)
    two = [Job("r", outputs=(Output("", str(n)),)) for n in range(2)]
    graph, running = Graph(two), {"0": {"since": 970.0}}
    assert ending.Ending(Costs(), 8, 10**9).at(graph, two, running) == 1000 + 0.6 * (70 + 100)
    assert ending.Ending(Costs(), 8, math.inf).at(graph, two, running) == 1100
    assert ending.Ending(Costs(), 1, math.inf).at(graph, two, {}) == 1200
    Costs.known = False
    assert ending.Ending(Costs(), 8, 10**9).at(graph, two, {}) is None


def test_one_question_has_one_total_in_whatever_order_the_jobs_come():
    """Snakemake's order is another in each process: three totals for the 367 targets of the matrix."""

    def job(name, seconds, *inputs):
        forecast = {"files": {name: seconds}, "seconds": seconds, "memory": 1, "download": 0}
        return {"action": "run", "outputs": [name], "inputs": inputs, "forecast": forecast}

    jobs = [job(f"m{n}", 7.0 * n % 5 + 1) for n in range(9)] + [job("all", 3.0, "m1", "m8")]
    orders = [random.Random(seed).sample(jobs, len(jobs)) for seed in range(20)]
    assert (
        len({schedule(list(tasks_of(order)), {"all"}, 2, False).seconds for order in orders}) == 1
    )


def test_what_a_bundle_links_is_not_freed():
    jobs = [
        Task("m.irpa", [], {"m.irpa": 100}, 1, 1),
        Task("m.shortfin", ["m.irpa"], {"m.shortfin": 1}, 1, 1, links=True),
    ]
    assert schedule(jobs, {"m.shortfin"}, 1, rolling=True).kept == 101


def test_what_the_store_has_a_copy_of_counts_twice_unless_the_disk_is_short():
    def jobs():
        return [Task("m.onnx", [], {"m.onnx": 100}, 1, 1, copied=True)]

    assert [schedule(jobs(), {"m.onnx"}, 1, rolling).kept for rolling in (False, True)] == [
        200,
        100,
    ]


def test_rolling_disk_keeps_all_that_a_target_comes_with():
    """The ranks of a set, of which the command line names the root."""
    jobs = [
        Task("m.hf", [], {"m.hf": 50}, 1, 1),
        Task("m_tp2.irpa", ["m.hf"], {"m_tp2.irpa": 1, "m_tp2.rank0.irpa": 50}, 1, 1),
    ]
    assert schedule(jobs, {"m_tp2.irpa"}, 1, rolling=True).kept == 51


COUNTS = {  # parameters, as published
    "llama2-7b-chat": 6_738_415_616, "llama8b": 8_030_261_248, "llama70b": 70_553_706_496,
    "llama405b": 405_853_388_800, "mistral-nemo": 12_247_782_400, "llama2-70b-chat": 68_976_648_192,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_is_planned_by_the_catalogues_dimensions_before_it_is_here(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model = Model(name, CATALOGUE, ROOT)
    assert model.parameters() == COUNTS[name] and not model.here


def test_dimensions_are_held_against_config_json_once_it_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "artifacts/llama8b.hf"
    place.mkdir(parents=True)
    config = json.loads((ROOT / "models/demo/config.json").read_text())
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        Refused, match=r"models.llama8b.dimensions.layers: 32, but .*config.json says"
    ):
        Model("llama8b", CATALOGUE, ROOT)


def test_a_forecast_learns_of_the_latest_jobs_and_reads_no_more_of_them(store, monkeypatch):
    """It read all records of a rule, and took the first by the letters of their keys."""
    monkeypatch.setattr(past, "MANY", 3)
    monkeypatch.setattr(blobs, "sync", lambda path: None)
    found, keys = Store(), []
    found.prepare()
    for age in range(9):
        keys.append(hashlib.sha256(str(age).encode()).hexdigest())
        output = {"kind": "file", "digest": found.put_bytes(b"m"), "size": 1, "title": "m.irpa"}
        cost = {"step": "gguf_to_irpa", "kind": "f16", "units": 1.0, "cores": 2, "seconds": 1.0,
                "peak_rss_mb": 1, "bytes": 1, "expected": [1, 1, 1]}  # fmt: skip
        found.record(Action("gguf_to_irpa", keys[-1], {"rule": "r"}, [output], cost, {}))
        os.utime(store / "actions/gguf_to_irpa" / keys[-1], (1e9 - age, 1e9 - age))
    read, real = [], Store.read
    monkeypatch.setattr(Store, "read", lambda *asked: read.append(asked) or real(*asked))
    jobs = past.Past(found, lambda step: 2).jobs("gguf_to_irpa")
    assert [job.key for job in jobs] == keys[:3] and len(read) == 3
