"""Ray Serve's bundles by the real Ray: three applications, ours as its users ask it, a replica killed."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

import apart as networks
from conftest import ROOT, once
from ingot.base.sealed import Ours
from ingot.driver.catalogue import schema
from ingot.model.config import read_config
from ingot.parity.hard_texts import STRINGS
from ingot.serving.kuberay import bundle as kuberay_bundle
from ingot.serving.kuberay.manifest import faults
from ingot.serving.rayserve import bundle as rayserve_bundle
from ingot.serving.rayserve.serve_config import FORMS
from ingot.serving.vllm.plan import planned

OWN = {"apps": ["cpu", "acpu"]}  # without vLLM: ready in half the time

WORDS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from body import Defaults, request
from words import Reading, Words
words = Words(Path(sys.argv[2]))
text = Path(sys.argv[3]).read_text(encoding="utf-8")[:6000]
text += "\\u20ac \\U0001f600 \\u0e01\\u0e33 <|eot_id|>"
found = {"ends": sorted(words.ends)}
ids = words.ids(text)
reading = Reading(words, [], [5, 6])
said = [reading.add(one) for one in ids]
found["whole"] = "".join(said) + reading.finish() == words.text(ids)
found["halves"] = any("\\ufffd" in one for one in said)
for stop in ("the ", "e", "zzz"):
    reading, parts = Reading(words, ["qqq", stop], []), []
    for one in ids:
        parts.append(reading.add(one))
        if reading.stopped:
            break
    else:
        parts.append(reading.finish())
    whole = words.text(ids)
    found[stop] = "".join(parts) == whole.split(stop)[0] and not any(stop in part for part in parts)
from tokenizers import Tokenizer, decoders, models
vocabulary = {"\u2581San": 0, "\u2581is": 1, "\u2581a": 2, "\u2581city": 3, "[UNK]": 4}
words.tokenizer, ours = Tokenizer(models.WordLevel(vocabulary, "[UNK]")), words.tokenizer
words.tokenizer.decoder = decoders.Metaspace()
reading = Reading(words, [], [0, 1, 2])
found["space"] = reading.add(3) + reading.finish()
words.tokenizer = ours
words.template = None
own = Defaults("demo", 512, 1024, 256, 1.0)
for name, messages in {"template": [{"role": "user", "content": "a"}], "none": []}.items():
    try:
        request({"messages": messages}, words, own, "messages")
    except ValueError as error:
        found[name] = str(error)
one = request({"prompt": "a b", "max_tokens": None, "stop": ["x"], "stream": True}, words, own, "prompt")
found["defaults"] = [one.asked.count, one.asked.temperature, one.stops, one.stream]
print(json.dumps(found))
"""
FIELDS = """
import json
from ray.serve import schema, config
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig, ModelLoadingConfig
names = lambda model: sorted(f.alias or n for n, f in model.model_fields.items())
print("FOUND" + json.dumps({
    "config": names(schema.ServeDeploySchema), "http": names(schema.HTTPOptionsSchema),
    "grpc": names(schema.gRPCOptionsSchema), "logging": names(schema.LoggingConfig),
    "application": names(schema.ServeApplicationSchema), "deployment": names(schema.DeploymentSchema),
    "autoscaling": names(config.AutoscalingConfig), "actor": names(schema.RayActorOptionsSchema),
    "llm": names(LLMConfig), "loading": names(ModelLoadingConfig),
    "silent": [schema.ServeDeploySchema(applications=[{
        "import_path": "a:b", "deployments": [{"name": "M", "max_concurrent_queries": 1,
                                               "ray_actor_options": {"amd_cpu": 1}}]}]) is not None],
}))
"""


@pytest.fixture(scope="module")
def bundle(shared, tmp_path_factory):
    """The demo for two replicas at /cpu and one at /acpu."""
    with once(tmp_path_factory, "rayserve") as (folder, done):
        if not done:
            own = {**OWN, "cpu": {"num_replicas": 2, "batch_size": 3}}
            (folder / "mine.yaml").write_text(json.dumps({"models": {"demo": {"ray": own}}}))
            words = ("--configfile", "mine.yaml", "--", "artifacts/demo_tp1.rayserve")
            said = shared(folder, *words)
            assert said.returncode == 0, said.stderr
    return folder / "artifacts/demo_tp1.rayserve"


def apart(*words, **options):
    """A command in a network of its own, since Ray listens on every address."""
    return subprocess.run(
        networks.words(*words), capture_output=True, text=True, timeout=900, check=False, **options
    )


@pytest.mark.slow
def test_the_three_applications_say_what_transformers_says(shared, tmp_path):
    """Guide 001's, in one configuration: alone, as a stream, beside others; the record holds them to it."""
    target = "artifacts/demo_tp1.rayserve.verified.json"
    words = [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", "--cores", "2", target]
    said = apart(*words, cwd=tmp_path, env={**os.environ, "INGOT_STORE": str(shared.store)})
    assert said.returncode == 0, said.stderr
    assert "changed while" not in said.stderr, "a file more in a folder whose files are listed"
    checks = json.loads((tmp_path / target).read_bytes())["checks"]
    for name in ("llm", "openvino", "onnx"):
        own = checks[name]
        assert own["prompts"] == own["greedy_equal"] == own["streams_equal"] == 26, (name, own)
        assert own["equal_beside_others"] >= (26 if name == "llm" else 24), (name, own)
    assert checks["llm"]["largest_logprob_difference"] < 1e-5
    assert checks["onnx"]["texts_equal"] == checks["openvino"]["texts_equal"] > len(STRINGS)


@pytest.mark.slow
def test_it_answers_its_users_and_survives_the_death_of_a_replica(bundle, python, tmp_path):
    place = tmp_path / "moved elsewhere"
    shutil.copytree(bundle, place)
    client = ROOT / "tests/doubles/rayserve_client.py"
    short = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # sockets lie there
    done = apart(python("rayserve"), client, place, env={**os.environ, "TMPDIR": str(short)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "killed" in found, found["said"]
    assert [line.split()[1] for line in found["said"] if "are the reference's" in line] == [
        "/cpu:",
        "/acpu:",
    ]
    usual = {name: one for name, one in found["usual"].items()}
    right = {
        name: json.loads(usual[name][1])["choices"][0] for name in ("text", "chat", "stop", "parts")
    }
    assert right["chat"]["message"]["content"].startswith("Washington, D.C.!")
    assert right["parts"]["message"] == right["chat"]["message"]
    assert (
        right["stop"]["message"]["content"] == "Washington, "
        and right["stop"]["finish_reason"] == "stop"
    )
    status, guide = usual["guide"]  # which asks for more tokens
    assert status == 200 and guide.startswith(right["text"]["text"])
    assert len(json.loads(usual["scores"][1])["choices"][0]["logprobs"]["content"]) == 2
    assert usual["seeded"][0] == usual["seeded"][1]
    events = [line.removeprefix("data: ") for line in usual["stream"][1].split("\n\n") if line]
    assert events.pop() == "[DONE]"
    parts = [json.loads(event) for event in events]
    assert parts.pop()["usage"]["prompt_tokens"] == 29
    said = "".join(part["choices"][0]["delta"]["content"] for part in parts)
    assert said == right["chat"]["message"]["content"]
    for name, word in {
        "unknown": "'temperatur': unknown, expected one of", "type": "max_tokens: '9', expected int",
        "bound": "max_tokens: 0, expected 1 to inf", "long": "max_tokens: 9999 after",
        "longer": "prompt: 600 tokens, expected fewer than 512", "tokens": "token ids from 0 to 1023",
        "several": "one text, or one list of token ids",
        "n": "n: 2, expected 1", "penalty": "presence_penalty: 0.5, expected 0",
        "picture": "a part that is no text", "list": "expected a JSON object",
        "deep": "expected a JSON object", "surrogate": "surrogates not allowed",
        "field": "unknown, expected", "hot": "expected 0 to 100", "zero": "n: 0, expected 1",
        "usage": "stream_options: expected",
        "wordless": "a part that is no text", "vast": "40000 letters", "odd": "expected a JSON object",
        "wide": "40000 letters", "bloated": "more than 1081344 bytes", "stuffed": "more than 1081344 bytes",
    }.items():  # fmt: skip
        status, text = usual[name]
        assert status == 400 and word in json.loads(text)["error"]["message"], (name, text)
    assert usual["other"][0] == 404 and "model: 'llama', expected demo" in usual["other"][1]
    assert usual["asked"][0] == 200
    assert usual["after"] == 200, "what nobody waits for makes room"
    assert usual["models"]["data"][0]["max_model_len"] == 512
    killed = found["killed"]
    assert killed["replicas"] == 2 and killed["wrong"] == 0 and killed["right"] > 50, killed
    assert killed["back"] <= 60, killed
    assert found["status"] == 0 and found["said"][-1].endswith("stopped\n"), found["said"]
    assert found["left"] == []
    short.rmdir()


@pytest.mark.root("a network of its own for several programs: Ray listens on every address")
@pytest.mark.slow
def test_on_a_cluster_it_serves_and_harms_nobody(bundle, python, tmp_path):
    """A Ray that runs already: one bundle serves there, a second is refused, and the first goes on."""
    own = {**os.environ, "PYTHON": str(python("rayserve")), "TMPDIR": "/tmp", "RAY_AUTH_MODE": "disabled",
           "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}  # fmt: skip
    head = [python("rayserve"), "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=8",
            "--node-ip-address=127.0.0.1", "--port=16379", "--include-dashboard=false",
            "--min-worker-port=0", "--max-worker-port=0",
            f"--temp-dir={tempfile.mkdtemp(prefix='r', dir='/tmp')}"]  # fmt: skip
    words = [bundle / "serve", "--address", "127.0.0.1:16379", "--port", "18001"]
    with networks.network():
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        ray = subprocess.Popen(
            [str(word) for word in head], env=own, start_new_session=True, **quiet
        )
        first = None
        try:
            wait(lambda: listening(16379), 60)
            with (tmp_path / "said").open("w") as said:
                first = subprocess.Popen(words, env=own, stdout=said, stderr=said)
            wait(
                lambda: (
                    "ready after" in (tmp_path / "said").read_text() or first.poll() is not None
                ),
                180,
            )
            assert "ready after" in (tmp_path / "said").read_text(), (tmp_path / "said").read_text()
            second = subprocess.run(
                words, env=own, capture_output=True, text=True, timeout=120, check=False
            )
            assert second.returncode == 1, second.stdout
            assert "Ray Serve runs there, expected none" in second.stdout
            asked = [bundle / "smoke", "http://127.0.0.1:18001"]
            assert subprocess.run(asked, env=own, timeout=60, check=False).returncode == 0
            first.terminate()
            assert first.wait(60) == 0
            assert ray.poll() is None, "the cluster is not ours"
        finally:
            for one in (first, ray):
                if one and one.poll() is None:
                    one.terminate()
                    one.wait(30)
            shutil.rmtree(head[-1].partition("=")[2], ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stopped, until", [(1, "ready after"), (9, "never"), (9, "0"), (0, "later")]
)
def test_a_raylet_that_gives_up_is_started_again_or_said(bundle, python, stopped, until):
    """On a busy machine its agents take longer than its own 15 s; here they are stopped.

    Told to end while Ray starts, at any moment, it ends as at any other.
    """
    if (
        until == "later"
    ):  # Ray's start took 3 to 20 s; whatever it was doing, SIGTERM hit it there once
        until = str(random.uniform(1, 12))
    short = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    own = {**os.environ, "PYTHON": str(python("rayserve")), "TMPDIR": str(short),
           **({"INGOT_RAYSERVE_TRY": "2"} if until == "never" else {})}  # fmt: skip
    client = ROOT / "tests/doubles/rayserve_slow.py"
    done = apart(sys.executable, client, bundle, stopped, until, env=own)
    assert done.returncode == 0, done.stderr
    status, said, left = json.loads(done.stdout)
    assert not left, (until, said)
    logs = list(short.glob("*"))
    if until == "never":
        assert status == 1, said
        assert "is started again (3 of 3)" in said
        assert "error: Ray's raylet ended: its agents took longer than the 15 s" in said
        assert [str(path) for path in logs] == re.findall("Ray's own logs: (.*)", said)
        assert list(logs[0].glob("raylet*"))
    else:
        assert status == 0 and not logs, (until, said, logs)
        assert said.splitlines()[-1].endswith(" stopped"), (until, said)
        assert until != "ready after" or "is started again (2 of 3)" in said
    shutil.rmtree(short)


def rayservice(folder, tp, apps, **settings):
    """The manifest of a bundle with these applications and settings."""
    engines = {}
    for name in ("onnx", "openvino"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.data").write_bytes(b"x")
        engines[name] = folder / name
    config = read_config(ROOT / "models/demo/config.json")
    ray = {
        **schema.load(ROOT)["models"]["demo"]["ray"],
        "image": "x/ray@sha256:" + 64 * "0",
        "apps": apps,
    }
    own = {"arguments": [], **settings}
    plan = planned(config, own, tp, "bfloat16", "k")
    files = {f"{name}/model.data": Ours(path / "model.data") for name, path in engines.items()}
    sources = rayserve_bundle.Sources(
        files, plan, 10**9, {"vocabulary": 9, "onnx": 512, "openvino": 512}
    )
    path = folder / "rayservice.yaml"
    path.write_text(yaml.safe_dump(kuberay_bundle.service("demo", sources, own, ray)))
    return path


def placed(python, manifest, *tries):
    """Of each try: the applications that came up, of those asked for; is another starved at the end?"""
    done = apart(python("vllm"), ROOT / "tests/doubles/ray_placement.py", manifest, *tries)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND")[2])
    return found["asked"], found["up"], found["starves"]


@pytest.mark.slow
def test_rays_own_scheduler_places_every_route(python, tmp_path):
    """Thrice; ten times each, the shapes of 8 GPUs and of two stages came up 30 times of 30 as well."""
    manifest = rayservice(tmp_path, 2, ["llm", "cpu", "acpu"], device="cpu", memory=0)
    asked, up, _ = placed(python, manifest, 3)
    assert len(asked) == 3 and up == [asked] * 3


@pytest.mark.slow
def test_what_check_calls_stuck_is_stuck_in_ray(python, tmp_path):
    """vLLM's ingress, which is there first, takes the only CPU beside a custom resource, whose replica
    waits for it."""
    manifest = rayservice(tmp_path, 2, ["llm", "cpu", "acpu"], device="cpu", memory=0)
    document = yaml.safe_load(manifest.read_text())
    for group in document["spec"]["rayClusterConfig"]["workerGroupSpecs"][1:]:
        group["rayStartParams"]["num-cpus"] = "1"
    served = yaml.safe_load(document["spec"]["serveConfigV2"])
    for one in served["applications"][1:]:
        one["deployments"][0]["ray_actor_options"]["num_cpus"] = 1
    document["spec"]["serveConfigV2"] = yaml.safe_dump(served)
    manifest.write_text(yaml.safe_dump(document))
    (fault,) = faults(document)
    assert "may be on no node" in str(fault)
    asked, (up,), starves = placed(python, manifest, 1, "demo")
    assert starves and "demo" in up and len(up) < len(asked), up


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(until, seconds):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_what_would_not_be_right_is_never_started(bundle, python, tmp_path):
    def refused(*words, own=None):
        done = subprocess.run(
            [tmp_path / "b/serve", *words], capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHON": str(own or python("rayserve")), "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert not list(tmp_path.glob("ingot-ray-*"))
        return done.stdout.splitlines()[-1]

    shutil.copytree(bundle, tmp_path / "b")
    assert refused(own=sys.executable).startswith(
        "error: onnxruntime: missing, expected 1.31.1; install"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: taken, expected a free port" in refused(f"--port={port}")
    weights = tmp_path / "b/onnx/model.head.data"
    data = bytearray(weights.read_bytes())
    data[9] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    assert "model.head.data: its bytes are not those built" in refused("--port=18001")
    weights.unlink()
    assert "model.head.data: missing" in refused("--port=18001")


def test_words_come_whole_and_stop_where_they_should(python):
    done = subprocess.run(
        [python("rayserve"), "-B", "-c", WORDS, ROOT / "runtime/rayserve", ROOT / "models/demo",
         ROOT / "models/corpus.txt"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ends"] == [1017, 1020]
    assert found["whole"] and not found["halves"] and found["the "] and found["e"] and found["zzz"]
    assert found["space"] == " city", "of a first word, which SentencePiece's decoder takes away"
    assert "the model has no chat template" in found["template"]
    assert "expected a list of {role, content}" in found["none"]
    assert found["defaults"] == [256, 1.0, ["x"], True]


def test_our_tables_have_rays_own_fields(python):
    """What Ray reads is known, and no more: else a right file is refused, or a dead field taken."""
    done = subprocess.run(
        [python("vllm"), "-c", FIELDS], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
    assert found.pop("silent") == [True], "Ray takes guide 001's dead settings without a word"
    for name, fields in found.items():
        assert sorted(key.rstrip("*") for key in FORMS[name]) == fields, name


def test_both_locks_have_the_catalogues_ray():
    version = schema.load(ROOT)["models"]["demo"]["ray"]["version"]
    for name in ("rayserve", "vllm", "vllm-cuda"):
        lock = (ROOT / "envs" / name / "requirements.lock").read_text()
        assert f"\nray=={version} " in lock, name
    small, large = (
        (ROOT / "envs" / name / "requirements.lock").read_text() for name in ("rayserve", "vllm")
    )
    pins = [
        line.split()[0]
        for line in small.splitlines()
        if line.startswith(("onnxruntime", "openvino=", "tok"))
    ]
    assert len(pins) == 3 and all(f"\n{pin} " in large for pin in pins)
