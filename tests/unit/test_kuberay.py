"""RayService manifests: what we write is right, and each of many faults is one line."""

import copy
import json
import random
import re
import shutil
import subprocess

import pytest
import yaml

import bundles
import kuberay_fields
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.commands import check
from ingot.model.config import read_config
from ingot.serving.kuberay import bundle as bundle_of
from ingot.serving.kuberay import definition, manifest
from ingot.serving.rayserve import applications, fields, serve_config
from ingot.serving.rayserve import bundle as rayserve
from ingot.serving.vllm import plan as plan_of

IMAGE = "registry.example/ray-vllm@sha256:" + 64 * "0"
RAY = {
    "image": IMAGE, "version": "2.60.0", "replicas": 2, "max_ongoing_requests": 64, "gpu": "nvidia.com/gpu",
    "accelerator": "H100", "node_selector": {}, "claim": "models", "folder": "", "apps": ["llm"],
}  # fmt: skip
CPUS = schema.load(ROOT)["models"]["demo"]["ray"]
GUIDE = """
proxy_location: HeadOnly
http_options: {host: 0.0.0.0, port: 8001}
applications:
  - name: intel
    import_path: inference:typed_app_builder
    route_prefix: /cpu
    args: {model_name: here, batch_timeout: 0.1, hf_token: hf_x, target_device: INTEL}
    deployments:
      - name: CPUDeployment
        num_replicas: 2
        max_concurrent_queries: 1
        ray_actor_options:
        num_cpus: 224
  - name: amd
    import_path: inference:typed_app_builder
    route_prefix: /acpu
    args: {max_new_token: 256}
    deployments:
      - name: CPUDeployment
        num_replicas: 3
        ray_actor_options: {num_cpus: 128, amd_cpu: 1}
"""  # the shape of guide 001's two applications for CPUs


def service(ray=RAY, tp=8, **settings):
    config = read_config(ROOT / "models/demo/config.json")
    own = {"device": "sm90", "memory": 80, "arguments": [], **settings}
    plan = plan_of.planned(config, own, tp, "bfloat16", "k")
    sources = rayserve.Sources({}, plan, 10**9, {"vocabulary": 9, "onnx": 512, "openvino": 512})
    return bundle_of.service("demo", sources, own, ray)


def said(document, pinned=True):
    return [str(fault) for fault in manifest.faults(document, pinned)]


def contents(reference, ray, **engines):
    demo = ROOT / "models/demo"
    return bundle_of.contents(
        model="demo", tp=2, settings=bundles.SETTINGS, ray=ray, reference=[reference], lock=[bundles.LOCK],
        checkpoint=[demo / "config.json", *demo.glob("model*")], tokenizer=[demo / "tokenizer.json"],
        parts=[*(ROOT / "runtime/vllm" / name for name in rayserve.PARTS),
               *sorted((ROOT / "runtime/rayserve").glob("*.py"))],
        **{"onnx": [], "openvino": [], **engines},
    )  # fmt: skip


DROP = object()
ACTOR = "ray_actor_options"


def edited(place, key, value):
    """The right document with one value put, or dropped; serve's configuration is data meanwhile."""
    document = copy.deepcopy(service())
    config = yaml.safe_load(document["spec"]["serveConfigV2"])
    cluster, application = document["spec"]["rayClusterConfig"], config["applications"][0]
    worker = cluster["workerGroupSpecs"][0]
    pod = worker["template"]["spec"]
    llm = application["args"]["llm_configs"][0]
    container = pod["containers"][0]
    found = {
        "spec": document["spec"], "cluster": cluster, "worker": worker, "pod": pod, "container": container,
        "metadata": document["metadata"],
        "volume": pod["volumes"][0], "mount": container["volumeMounts"][0], "template": worker["template"],
        "requests": container["resources"]["requests"], "app": application, "args": application["args"],
        "llm": llm, "engine": llm["engine_kwargs"], "replicas": llm["deployment_config"],
    }[place]  # fmt: skip
    if value is DROP:
        del found[key]
    else:
        found[key] = value
    if key != "serveConfigV2":
        document["spec"]["serveConfigV2"] = yaml.safe_dump(config)
    return document


def deployment(**fields):
    return [{"name": "x", **fields}]


OTHER_RAY = "x/ray:2.52.0@sha256:" + 64 * "0"
TOKEN = [{"name": "HF_TOKEN", "value": "hf_x"}]
BROKEN = [  # what is put where, and what is said of it
    ("metadata", "name", "405b", "405b, expected"),
    ("cluster", "workerGroupSpec", [], "did you mean workerGroupSpecs"),
    ("worker", "replica", 2, "did you mean replicas"),
    ("worker", "replicas", "one", "'one', expected integer"),
    ("worker", "rayStartParams", {"num-gpus": 8}, "8, expected string"),
    ("worker", "groupName", DROP, "groupName: missing"),
    ("worker", "template", "pod", "expected fields"),
    ("worker", "replicas", 1, "16 times 1 GPU, and the groups hold it 8 times"),
    ("worker", "rayStartParams", {"num-gpus": "0"}, "no node offers 1 GPU"),
    ("container", "name", DROP, "name: missing"),
    ("cluster", "headGroupSpec", DROP, "headGroupSpec: missing"),
    ("spec", "rayClusterConfig", DROP, "rayClusterConfig: missing"),
    ("pod", "containers", {}, "expected a list"),
    ("volume", "persistentVolumeClam", {}, "did you mean persistentVolumeClaim"),
    ("mount", "mountpath", "/x", "did you mean mountPath"),
    ("mount", "readOnly", "yes", "'yes', expected boolean"),
    ("container", "image", "ray:2.60.0", "expected a digest"),
    ("container", "image", "ray:latest", "expected a digest"),
    ("container", "image", OTHER_RAY, "has Ray 2.52.0, expected 2.60.0"),
    ("requests", "nvidia.com/gpu", "4", "requests 4 and limits 8"),
    ("container", "env", TOKEN, "HF_TOKEN: a secret in plain text"),
    ("args", "hf_token", "hf_x", "hf_token: a secret in plain text"),
    ("replicas", "num_replicas", 3, "24 times 1 GPU"),
    ("replicas", "autoscaling_config", {"min_replica": 1}, "did you mean min_replicas"),
    ("app", "deployments", deployment(**{ACTOR: {"resources": {"a": 1}}}), "no node offers"),
    ("app", "deployments", deployment(**{ACTOR: {"num_cpus": 999}}), "no node offers 999 CPU"),
    ("app", "deployments", deployment(**{ACTOR: {"amd_cpu": 1}}), "write resources: {amd_cpu: 1}"),
    ("app", "deployments", deployment(max_concurrent_queries=4), "max_ongoing_requests today"),
    ("app", "deployments", deployment(num_cpus=4), "belongs under ray_actor_options"),
    ("app", "deployments", [{"num_replicas": 1}], "name: missing"),
    ("app", "import_path", DROP, "import_path: missing"),
    ("app", "route_prefx", "/", "did you mean route_prefix"),
    ("engine", "tensor_paralel_size", 8, "unknown to vLLM"),
    ("engine", "tensor_parallel_size", "eight", "expected a number of ranks"),
    ("llm", "engine_kwarg", {}, "did you mean engine_kwargs"),
    ("llm", "model_loading_config", DROP, "model_loading_config: missing"),
    ("worker", "suspend", True, "no node offers 1 GPU"),
    ("worker", "rayStartParams", {"resources": "{amd"}, "expected JSON"),
    ("worker", "rayStartParams", {"resources": "[1]"}, "expected JSON"),
    ("llm", "runtime_env", {"env_vars": {"HF_TOKEN": "hf_x"}}, "HF_TOKEN: a secret in plain text"),
    ("args", "llm_configs", {}, "llm_configs: missing"),
    ("spec", "serveConfigV2", "a: [b", "not YAML"),
    ("spec", "serveConfigV2", "[1]", "expected fields"),
    ("spec", "serviceUnhealtySecondThreshold", 9, "did you mean serviceUnhealthySecondThreshold"),
]


def test_what_we_write_has_no_fault():
    for tp, settings in ((8, {}), (2, {"pp": 2}), (1, {"device": "cpu", "memory": 0})):
        assert said(service(tp=tp, **settings)) == []
    image = service({**RAY, "model_image": IMAGE, "node_selector": {"gpu": "h100"}})
    assert said(image) == []
    worker = image["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert worker["volumes"][0]["image"]["reference"] == IMAGE
    assert worker["nodeSelector"] == {"gpu": "h100"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return bundles.reference(tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(("place", "key", "value", "expected"), BROKEN)
def test_each_fault_is_named(place, key, value, expected):
    found = said(edited(place, key, value))
    assert any(expected in line for line in found), found
    assert all("\n" not in line for line in found) and len(BROKEN) >= 30


def test_every_defect_of_the_guides_applications_is_found():
    document = service()
    document["spec"]["serveConfigV2"] = GUIDE
    head = document["spec"]["rayClusterConfig"]["headGroupSpec"]
    head["rayStartParams"] = {"num-cpus": "220", "resources": "'{\\\"amd_cpu\\\": 10}'"}
    found = "\n".join(said(document, pinned=False))
    for expected in (
        "deployments[0].max_concurrent_queries: unknown, and has no effect: it is max_ongoing_requests",
        "deployments[0].num_cpus: unknown, and has no effect: it belongs under ray_actor_options",
        "ray_actor_options.amd_cpu: has no effect, expected a custom resource",
        "args.hf_token: a secret in plain text",
        "args.batch_timeout: unknown", "args.max_new_token: unknown",
        "applications[1].deployments[0]: 3 times 128 CPU, and the groups hold it 1 times",
    ):  # fmt: skip
        assert expected in found, found


def test_custom_resources_are_read_as_ray_reads_them():
    document = service()
    worker = document["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    worker["rayStartParams"] = {"resources": "'{\\\"amd_cpu\\\": 10}'"}
    config = {"applications": [{"name": "a", "import_path": "a:b", "deployments": [
        {"name": "d", "num_replicas": 20, ACTOR: {"num_cpus": 1, "resources": {"amd_cpu": 1}}},
    ]}]}  # fmt: skip
    document["spec"]["serveConfigV2"] = yaml.safe_dump(config)
    assert said(document) == []
    config["applications"][0]["deployments"][0]["num_replicas"] = 21
    document["spec"]["serveConfigV2"] = yaml.safe_dump(config)
    assert any(
        "21 times 1 CPU and 1 amd_cpu, and the groups hold it 20 times" in x for x in said(document)
    )


FREE = [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}, {"name": "MAX_TOKENS", "value": "4"}]
HALF = {"bundles": [{"GPU": 0.5}]}
RIGHT = [  # what Ray and KubeRay take, and so do we
    ("container", "env", FREE),
    ("worker", "rayStartParams", {"num-cpus": "1..2"}),
    ("worker", "maxReplicas", 1),  # without an autoscaler nobody asks for it
    ("llm", "placement_group_config", HALF),
    ("llm", "accelerator_type", "TPU-V6E"),
    ("args", "llm_configs", ["models/a.yaml"]),
    ("requests", "nvidia.com/gpu", 8),  # a number, and the limit is a text
    ("app", "deployments", deployment(num_replicas=500)),  # what it takes is in the code
]


@pytest.mark.parametrize(("place", "key", "value"), RIGHT)
def test_what_is_right_is_no_fault(place, key, value):
    assert said(edited(place, key, value)) == []


def test_an_autoscaler_adds_pods_up_to_its_limit():
    document = edited("replicas", "num_replicas", 4)
    assert any("32 times 1 GPU" in line for line in said(document))
    cluster = document["spec"]["rayClusterConfig"]
    cluster["enableInTreeAutoscaling"] = True
    cluster["workerGroupSpecs"][0]["maxReplicas"] = 4
    assert said(document) == []
    del cluster["workerGroupSpecs"][0]["maxReplicas"]
    assert said(document) == []


def test_ranks_on_cpus_have_room_for_the_replica_and_the_ingress():
    found = service({**RAY, "replicas": 1}, tp=2, device="cpu", memory=0)
    assert said(found) == []
    worker = found["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    container = worker["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["cpu"] == "4"
    assert {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind|nobind"} in container["env"]
    container["resources"]["limits"]["cpu"] = "2"
    assert any("no node offers 3 CPU" in line for line in said(found))
    with pytest.raises(Refused, match="Ray keeps ranks on CPUs together"):
        service(tp=1, device="cpu", memory=0, pp=2)


def test_kustomize_takes_the_folder_and_its_overlay(tmp_path, reference):
    if not shutil.which("kubectl"):
        pytest.skip("kustomize is kubectl's")
    for ray in (RAY, {**RAY, "model_image": IMAGE}):
        folder = tmp_path / str("model_image" in ray)
        (folder / "base").mkdir(parents=True)
        (folder / "site").mkdir()
        found = contents(reference, ray | {"claim": "mine"})
        for name in ("base/rayservice.yaml", "base/kustomization.yaml", "kustomization.yaml"):
            (folder / name).write_text(found[name])
        site = found["site/kustomization.yaml"].replace("value: mine", "value: other")
        (folder / "site/kustomization.yaml").write_text(site)
        for place, claims in ((folder, {"mine"}), (folder / "site", {"other"})):
            done = subprocess.run(
                ["kubectl", "kustomize", place], capture_output=True, text=True, check=True
            )
            document = yaml.safe_load(done.stdout)
            assert said(document) == []
            claimed = set(re.findall(r"claimName: (\w+)", done.stdout))
            assert claimed == (set() if "model_image" in ray else claims)


def test_nothing_that_comes_in_is_a_traceback():
    rng = random.Random(0)
    values = (None, 1, -1, "x", [], {}, [1], {"a": 1}, True, 1.5)

    def harm(value):
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            value[key] = (
                harm(value[key]) if rng.random() < 0.8 else copy.deepcopy(rng.choice(values))
            )
            return value
        if isinstance(value, list) and value and rng.random() < 0.9:
            index = rng.randrange(len(value))
            value[index] = harm(value[index])
            return value
        return copy.deepcopy(rng.choice(values))

    for _ in range(400):
        document = copy.deepcopy(service())
        if rng.random() < 0.5:
            config = harm(yaml.safe_load(document["spec"]["serveConfigV2"]))
            document["spec"]["serveConfigV2"] = yaml.safe_dump(config)
        for fault in manifest.faults(
            harm(document) if rng.random() < 0.7 else document, pinned=True
        ):
            assert "\n" not in str(fault)


def test_the_command_names_the_file_and_counts(tmp_path, capsys):
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(yaml.safe_dump(service()))
    wrong.write_text(yaml.safe_dump(edited(*BROKEN[-1][:3])))

    def run(*paths):
        from argparse import Namespace

        return check.run(ROOT, Namespace(file=list(paths)))

    assert run(right) == 0 and run(right, wrong) == 1
    text = capsys.readouterr()
    assert "2 files, 1 fault" in text.out and f"{wrong}: RayService.spec." in text.err
    (tmp_path / "none.yaml").write_text("kind: Service")
    with pytest.raises(Refused, match="no RayService in it"):
        run(tmp_path / "none.yaml")
    (tmp_path / "odd.yaml").write_text("a: [")
    with pytest.raises(Refused, match="not YAML"):
        run(tmp_path / "odd.yaml")


def test_a_bundle_needs_an_image_by_digest():
    catalogue = schema.load(ROOT)
    why = targets.why_not("artifacts/demo_tp1.kuberay", catalogue)
    assert "models.demo.ray.image: missing, expected name@sha256:" in why
    catalogue["models"]["demo"]["ray"]["image"] = IMAGE
    assert targets.why_not("artifacts/demo_tp1.kuberay", catalogue) is None


def test_a_bundle_asks_what_the_other_does(tmp_path, reference):
    found = contents(reference, RAY)
    assert {
        "base/rayservice.yaml",
        "kustomization.yaml",
        "site/kustomization.yaml",
        "smoke",
    } <= set(found)
    assert json.loads(found["bundle.json"])["kv_tokens"] == 16_384
    (tmp_path / "parts").mkdir()
    for name in bundle_of.ASKING:
        shutil.copy(ROOT / "runtime/vllm" / name, tmp_path / "parts")
    (tmp_path / "smoke").write_text(found["smoke"])
    (tmp_path / "smoke.json").write_text(found["smoke.json"])
    done = subprocess.run(
        [
            "env",
            "-u",
            "PYTHONDONTWRITEBYTECODE",
            "-u",
            "PYTHONPYCACHEPREFIX",
            "sh",
            tmp_path / "smoke",
            "http://127.0.0.1:9",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "parts/__pycache__").exists(), "its files are listed"
    assert done.returncode == 1 and "Connection refused" in done.stderr


def test_applications_on_cpus_have_groups_of_their_own(reference, tmp_path):
    engines = {}
    for name in ("onnx", "openvino"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.data").write_bytes(b"x" * 1000)
        engines[name] = [tmp_path / name]
    amd = {"feature.node.kubernetes.io/cpu-model.vendor_id": "AMD"}
    own = {
        **CPUS, **RAY, "apps": ["llm", "cpu", "acpu"],
        "acpu": {**CPUS["acpu"], "num_cpus": 128, "num_replicas": 3, "resources": {"amd_cpu": 1},
                 "node_selector": amd},
    }  # fmt: skip
    found = contents(reference, own, **engines)
    document = yaml.safe_load(found["base/rayservice.yaml"])
    assert not said(document)
    groups = {
        one["groupName"]: one for one in document["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    assert list(groups) == ["ranks", "cpu", "acpu"]
    assert groups["acpu"]["replicas"] == 3
    assert groups["acpu"]["rayStartParams"]["resources"] == '"{\\"amd_cpu\\": 1}"'
    assert manifest.custom(groups["cpu"]["rayStartParams"]["resources"]) == {"openvino": 1}
    assert [one["rayStartParams"].get("num-cpus") for one in groups.values()] == [None, "0", "0"], (
        "vLLM's ingress would take a CPU of theirs, and their Model wait for ever"
    )
    spec = groups["acpu"]["template"]["spec"]
    assert {"name": "INGOT_THREADS", "value": "128"} in spec["containers"][0]["env"]
    assert spec["nodeSelector"] == amd
    assert spec["containers"][0]["resources"]["limits"]["cpu"] == "128"
    served = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"]
    assert [one["route_prefix"] for one in served] == ["/", "/cpu", "/acpu"]
    options = served[1]["deployments"][0]["ray_actor_options"]
    assert options == {"num_cpus": 0, "resources": {"openvino": 1}}
    for pod in [document["spec"]["rayClusterConfig"]["headGroupSpec"], *groups.values()]:
        environment = pod["template"]["spec"]["containers"][0]["env"]
        assert {"name": "PYTHONPATH", "value": "/models/demo/parts"} in environment
    assert {"parts/inference.py", "onnx/model.data", "openvino/model.data"} <= set(found)
    known = json.loads(found["smoke.json"])["applications"]
    assert [one["route"] for one in known] == ["/", "/cpu", "/acpu"]
    assert found["site/kustomization.yaml"].count("op: replace") == 4
    for number, one in enumerate(
        list(groups.values())[1:], 1
    ):  # as it was: a CPU beside the resource
        one["rayStartParams"]["num-cpus"] = "128"
        served[number]["deployments"][0]["ray_actor_options"]["num_cpus"] = 128
    document["spec"]["serveConfigV2"] = yaml.safe_dump({"applications": served})
    (fault,) = said(document)
    assert re.search(
        r"128 CPU and 1 \w+ may be on no node once serveConfigV2.applications\[0\]", fault
    )
    alone = contents(reference, {**own, "apps": ["acpu"]}, **engines)
    document = yaml.safe_load(alone["base/rayservice.yaml"])
    assert not said(document) and not any(name.startswith("model/") for name in alone)


def test_arguments_of_a_line_are_those_of_a_call():
    words = ["--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--seed=3"]
    assert applications.keywords(["--no-enable-prefix-caching"]) == {"enable_prefix_caching": False}
    assert applications.keywords(words) == {
        "dtype": "float32", "max_model_len": 512, "enforce_eager": True, "seed": 3,
    }  # fmt: skip


def test_the_table_is_what_a_definition_gives():
    spec = {
        "type": "object", "required": ["a", "c"],
        "properties": {
            "a": {"type": "string"}, "b": {"x-kubernetes-int-or-string": True},
            "c": {"type": "integer", "default": 1}, "d": {"type": "array", "items": {"type": "boolean"}},
            "e": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }  # fmt: skip
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": spec}}]
    root, objects = kuberay_fields.derived({"spec": {"versions": versions}})
    assert objects == {
        root: {
            "a*": "string",
            "b": "int-or-string",
            "c": "integer",
            "d": ["boolean"],
            "e": {"": "string"},
        }
    }
    assert [str(one) for one in fields.walk({"b": 1.5, "e": {"x": 1}}, root, "r", objects)] == [
        "r.b: 1.5, expected int-or-string", "r.e.x: 1, expected string", "r.a: missing, expected a value",
    ]  # fmt: skip
    assert serve_config.FORMS["deployment"]["name*"] == "string"
    assert "spec" in definition.OBJECTS[definition.ROOT]
