"""Ray Serve's bundles: what the catalogue asks for, what they hold, and requests computed together."""

import copy
import hashlib
import json
import queue
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import bundles
from conftest import ROOT
from ingot.base import sealed
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.serving.kuberay.manifest import MIG
from ingot.serving.rayserve import applications, serve_config
from ingot.serving.rayserve import bundle as bundle_of
from ingot.serving.rayserve.server import Server

sys.path.append(str(ROOT / "runtime/rayserve"))
import batching

RAY = schema.load(ROOT)["models"]["demo"]["ray"]
PARTS = [
    *sorted((ROOT / "runtime/rayserve").glob("*.py")),
    *(ROOT / "runtime/vllm" / name for name in bundle_of.PARTS),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return bundles.reference(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def engines(tmp_path):
    """Folders of the layout of M.int8.onnx and M.int8.openvino."""
    for name in ("onnx", "openvino"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "onnx/graph.json").write_text('{"max_length": 300}')
    return {name: [tmp_path / name] for name in ("onnx", "openvino")}


def contents(reference, engines, ray=RAY, tp=1):
    demo = ROOT / "models/demo"
    return bundle_of.contents(
        model="demo", tp=tp, settings=bundles.SETTINGS,
        checkpoint=[demo / "config.json", *demo.glob("model*")], tokenizer=[demo / "tokenizer.json"],
        parts=PARTS, lock=[bundles.LOCK], reference=[reference], ray=ray, **engines,
    )  # fmt: skip


def test_the_guides_three_applications_stand_in_one_configuration(reference, engines):
    found = yaml.safe_load(contents(reference, engines)["serve.yaml"])
    routes = {one["route_prefix"]: one for one in found["applications"]}
    assert list(routes) == ["/", "/cpu", "/acpu"]
    assert found["http_options"]["host"] == "127.0.0.1"
    assert routes["/cpu"]["args"]["engine"] == "openvino"
    assert routes["/cpu"]["args"]["longest"] == 512  # the model's context
    assert routes["/acpu"]["args"]["longest"] == 300  # what the graph is made for
    assert next(serve_config.faults(found, engine=True), None) is None


def test_a_custom_resource_is_asked_for_as_ray_reads_it(reference, engines):
    ray = copy.deepcopy(RAY)
    ray["acpu"] |= {"num_cpus": 128, "num_replicas": 3, "resources": {"amd_cpu": 1}}
    ray["apps"] = ["acpu"]
    found = contents(reference, engines, ray)
    actor = yaml.safe_load(found["serve.yaml"])["applications"][0]["deployments"][0]
    assert actor["ray_actor_options"] == {"num_cpus": 128, "resources": {"amd_cpu": 1}}
    assert json.loads(found["bundle.json"])["asks"] == {"CPU": 384, "amd_cpu": 3}
    assert not any(name.startswith(("model/", "openvino/")) for name in found)


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ("acpu", "max_concurrent_queries", 1, "it is max_ongoing_requests today"),
        ("cpu", "max_new_token", 256, "it is max_new_tokens"),
        ("cpu", "batch_timeout", 0.1, "a request joins the running batch at once"),
        ("cpu", "batch_wait_timeout_s", 0.1, "a request joins the running batch at once"),
        ("acpu", "amd_cpu", 1, "write resources: {amd_cpu: 1}"),
        ("cpu", "hf_token", "hf_x", "a secret in a catalogue"),
        ("cpu", "target_device", "INTEL", "its application says it: cpu or acpu"),
        ("cpu", "num_gpu", 1, "num_gpu: no such key, expected num_cpus"),
        ("cpu", "num_cpus", 0, "less than or equal to the minimum"),
        ("cpu", "temperature", -1, "less than the minimum"),
        (None, "gpu_count", 4, "it is the target's tensor parallel size"),
        (None, "max_concurrent_queries", 256, "it is max_ongoing_requests today"),
        (None, "apps", ["gpu"], "not one of llm, cpu, acpu"),
        (None, "apps", [], "[] should be non-empty"),
    ],
)
def test_the_guides_dead_spellings_are_named(tmp_path, table, key, value, said):
    own = {key: value} if table is None else {table: {key: value}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"models": {"demo": {"ray": own}}}))
    with pytest.raises(Refused) as refused:
        schema.load(ROOT, str(tmp_path / "mine.yaml"))
    assert said in str(refused.value) and "models.demo.ray" in str(refused.value)
    assert "hf_x" not in str(refused.value)


def test_what_cannot_be_served_is_refused_before_it_is_built():
    catalogue = schema.load(ROOT)
    entry = catalogue["models"]["demo"]
    assert targets.why_not("artifacts/demo_tp2.rayserve", catalogue) is None
    entry["onnx"]["graph"] = "fused"
    assert "onnx.graph: fused, expected portable" in targets.why_not(
        "artifacts/demo_tp1.rayserve", catalogue
    )
    entry["ray"]["apps"] = ["cpu"]
    assert targets.why_not("artifacts/demo_tp1.rayserve", catalogue) is None
    assert "expected llm in it" in targets.why_not("artifacts/demo_tp2.rayserve", catalogue)


def test_the_longest_request_is_what_the_catalogue_says_or_refused(reference, engines):
    ray = {**RAY, "acpu": {**RAY["acpu"], "max_model_len": 256}}
    found = contents(reference, engines, ray)
    args = yaml.safe_load(found["serve.yaml"])["applications"][2]["args"]
    assert args["engine"] == "onnx" and args["longest"] == 256
    for one in json.loads(found["smoke.json"])["applications"][2]["cases"]:
        assert len(one["prompt"]) + len(one["tokens"]) <= 256
    ray["acpu"]["max_model_len"] = 400
    with pytest.raises(Refused, match=r"acpu\.max_model_len: 400, expected at most 300"):
        contents(reference, engines, ray)


def test_a_bundle_names_no_place_and_is_the_same_anywhere(reference, engines, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        sealed.fill(tmp_path / name, contents(reference, engines))
    assert sealed.sealed(tmp_path / "a") == sealed.sealed(tmp_path / "b")
    for path in sealed.files(tmp_path / "a"):
        assert str(ROOT).encode() not in path.read_bytes(), path
    linked = tmp_path / "a/onnx/graph.json"
    assert linked.stat().st_ino == (tmp_path / "onnx/graph.json").stat().st_ino, "stored once"
    assert Server(tmp_path / "a", Path("python")).environment()["PYTHON"] == "python"


def test_ranks_and_replicas_are_counted(reference, engines):
    ray = {**RAY, "replicas": 2}
    found = json.loads(contents(reference, engines, ray, tp=2)["bundle.json"])
    assert found["asks"] == {"CPU": 1 + 2 + 4 + 1 + 1}  # ingress, replicas, ranks, cpu, acpu
    assert found["shm_bytes"] == 4 << 29
    assert MIG and applications.ENGINES == {"cpu": "openvino", "acpu": "onnx"}


# Requests computed together


class Toy:
    """A decoder whose next token follows from every token before it, in their order."""

    steps = 0

    def session(self):
        return ToySession(self)


class ToySession:
    def __init__(self, toy):
        self.toy, self.cache = toy, [np.zeros((1, 1, 0, 1), np.int64)]

    def step(self, ids, mask):
        self.toy.steps += 1
        self.cache = [np.concatenate([self.cache[0], ids[:, None, :, None]], axis=2)]
        assert self.cache[0].shape[2] == mask.shape[1]
        logits = np.zeros((len(ids), 50), np.float32)
        for row, (own, seen) in enumerate(zip(self.cache[0][:, 0, :, 0], mask, strict=True)):
            text = ",".join(map(str, own[seen == 1])).encode()
            logits[row] = np.frombuffer(hashlib.sha256(text).digest() * 2, np.uint8)[:50] / 25
        return logits

    def keep(self, rows):
        self.cache = [self.cache[0][rows]]


def answer(batch, **words):
    told = queue.Queue()
    batch.add(batching.Asked(**words), told.put)
    return told


def collected(told):
    found = []
    while True:
        one = told.get(timeout=30)
        if isinstance(one, Exception):
            raise one
        if isinstance(one, str):
            return [token for token, _ in found], one
        found.append(one)


def test_a_request_has_the_same_answer_beside_any_others():
    rng = np.random.default_rng(0)
    asked = [
        {
            "prompt": rng.integers(0, 50, rng.integers(1, 600)).tolist(),
            "count": int(rng.integers(1, 40)),
            "ends": frozenset([7]),
            "temperature": float(rng.choice([0, 0.8])),
            "top_p": 0.9,
            "seed": int(rng.integers(99)),
        }
        for _ in range(60)
    ]
    toy = Toy()
    batch = batching.Batch(toy, 1)
    alone = [collected(answer(batch, **one)) for one in asked]
    one_by_one, toy.steps = toy.steps, 0
    batch = batching.Batch(toy, 6)
    together = [collected(told) for told in [answer(batch, **one) for one in asked]]
    assert together == alone
    assert {why for _, why in alone} == {"stop", "length"}
    assert toy.steps < one_by_one / 2, "computed together"


def test_a_request_that_is_given_up_leaves_room_and_hurts_nobody():
    batch = batching.Batch(Toy(), 2)
    told = queue.Queue()
    rows = [batch.add(batching.Asked([1], 10**9), told.put) for _ in range(2)]
    told.get(timeout=30)
    third = answer(batch, prompt=[1, 2], count=3)
    for row in rows:
        row.cancelled = True
    assert collected(third)[1] == "length"


def test_who_waits_hears_when_the_decoder_fails():
    toy = Toy()
    batch = batching.Batch(toy, 1)
    toy.session = lambda: (_ for _ in ()).throw(RuntimeError("out of memory"))
    for _ in range(3):  # the first is told, or the later ones are not taken
        with pytest.raises(RuntimeError, match="out of memory"):
            collected(answer(batch, prompt=[1], count=5))
    with pytest.raises(RuntimeError, match="out of memory"):
        batch.add(batching.Asked([1], 1), print)


def test_chance_follows_the_seed_and_its_bounds():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))

    def drawn(**words):
        asked = batching.Asked([1], 1, **words)
        return [batching.chosen(logits, asked, np.random.default_rng(n)) for n in range(400)]

    assert set(drawn()) == {0}
    assert set(drawn(temperature=1.0, top_p=0.8)) == {0, 1}
    assert set(drawn(temperature=1.0, top_k=3)) == {0, 1, 2}
    share = np.mean(np.array(drawn(temperature=1.0)) == 0)
    assert 0.42 < share < 0.58
    assert np.mean(np.array(drawn(temperature=0.3)) == 0) > share + 0.2


def test_no_part_imports_ours():
    for path in PARTS:
        assert not re.search(r"^\s*(from|import) ingot", path.read_text(), re.MULTILINE), path


def test_rays_logs_outlive_a_start_that_failed(tmp_path):
    """In a process of its own: its modules are called as other servers' are."""
    logs = tmp_path / "scratch/session_1/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.err").write_text("the reason")
    (tmp_path / "scratch/session_latest").symlink_to("session_1")
    code = """
import sys
from pathlib import Path
from program import Program
one = object.__new__(Program)
one.scratch = Path(sys.argv[1])
one.keep_logs()
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, tmp_path / "scratch"],
        capture_output=True, text=True, check=True,
        env={"PYTHONPATH": f"{ROOT}/runtime/rayserve:{ROOT}/runtime/vllm", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    assert Path(line.removeprefix("Ray's own logs: "), "raylet.err").read_text() == "the reason"
