"""What a bundle for KubeRay holds: model, manifests, a site's overlay, what must be answered."""

import copy
import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from ingot.files.sealed import Contents
from ingot.kuberay import manifest
from ingot.rayserve.applications import language_model
from ingot.refused import Refused
from ingot.serve.launch import FOLDER
from ingot.vllm import bundle as vllm
from ingot.vllm import plan as plan_of
from ingot.vllm.plan import Plan

PARTS = ("asking.py", "place.py")  # of runtime/vllm: what asks a server
SMOKE = """\
#!/bin/sh
# Ask a server what smoke.json knows the answer to: ./smoke http://127.0.0.1:8000
{folder}exec "${{PYTHON:-python3}}" -B "$here/parts/asking.py" "$@"
"""
HEAD_CPUS, HEAD_GB = 4, 16
CPU_BESIDE = 2  # a replica's own, and the ingress's
CLUSTER = "/spec/rayClusterConfig"
PODS = (f"{CLUSTER}/headGroupSpec/template/spec", f"{CLUSTER}/workerGroupSpecs/0/template/spec")
SITE = """\
# Yours: correct it, and apply it in place of the folder above: kubectl apply -k site/
resources: [../base]
# namespace: serving
"""
CLAIM = """\
      - {{op: replace, path: {pod}/volumes/0/persistentVolumeClaim/claimName, value: {claim}}}
"""
OBJECTS = 4  # of shared memory: the part that Ray's object store may take


def add_options(parser: ArgumentParser) -> None:
    """Those of its parts; `contents` takes them by name."""
    vllm.add_options(parser)
    parser.add_argument("--ray", type=json.loads, required=True, help="the catalogue's, as JSON")


def contents(
    model: str,
    tp: int,
    settings: dict[str, Any],
    checkpoint: list[Path],
    tokenizer: list[Path],
    parts: list[Path],
    lock: list[Path],
    reference: list[Path],
    ray: dict[str, Any],
) -> Contents:
    import yaml

    files, weights = vllm.model_files(checkpoint, tokenizer)
    config = next(path for path in checkpoint if path.name == "config.json")
    plan, about = vllm.described(model, tp, settings, config, lock[0], weights)
    found = service(model, plan, settings, sum(weights.values()), ray)
    if wrong := next(manifest.faults(found, pinned=True), None):
        raise Refused(f"models.{model}.ray: {wrong}")
    text = yaml.safe_dump(found, sort_keys=False, width=1000)
    return {
        **files,
        **{f"parts/{path.name}": path for path in parts if path.name in PARTS},
        "base/rayservice.yaml": text,
        "base/kustomization.yaml": "resources: [rayservice.yaml]\n",
        "kustomization.yaml": "resources: [base]\n",
        "site/kustomization.yaml": site(ray),
        "smoke": SMOKE.format(folder=FOLDER),
        "smoke.json": json.dumps(vllm.smoke(model, reference, plan)) + "\n",
        "bundle.json": json.dumps(about, indent=1, sort_keys=True) + "\n",
        "README.md": readme(model, plan, sum(weights.values()), ray),
    }


def site(ray: dict[str, Any]) -> str:
    """An overlay, which names what differs between sites: the claim that holds the model."""
    if "model_image" in ray:
        return SITE
    each = "".join(CLAIM.format(pod=pod, claim=ray["claim"]) for pod in PODS)
    return f"{SITE}patches:\n  - target: {{kind: RayService}}\n    patch: |-\n{each}"


def service(
    model: str, plan: Plan, settings: dict[str, Any], weights: int, ray: dict[str, Any]
) -> dict[str, Any]:
    """The RayService: a head without ranks, and as many pods of ranks as the plan has nodes."""
    import yaml

    source = f"/models/{ray['folder'] or model}"
    served = {"applications": [language_model(model, plan, settings, ray, source)]}
    asked = plan_of.asked(plan, weights, vllm.READ_MB_S)
    cores, memory = int(asked["cpus-per-task"]), int(str(asked["mem"]).rstrip("G"))
    ranks = plan.ranks_per_node
    shm = 2 * plan_of.SHM_PER_RANK * ranks
    mounts = [
        {"name": "model", "mountPath": "/models", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes = [
        {"name": "model", "persistentVolumeClaim": {"claimName": ray["claim"], "readOnly": True}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm >> 20}Mi"}},
    ]
    if "model_image" in ray:
        volumes[0] = {"name": "model", "image": {"reference": ray["model_image"]}}
    if plan.device == "cpu":
        if plan.nodes > 1:
            key = f"models.{model}.vllm.nodes: {plan.nodes}"
            raise Refused(f"{key}, expected 1: Ray keeps ranks on CPUs together")
        cores = ranks + CPU_BESIDE
    environment = plan_of.environment(plan)
    worker = pod("worker", ray["image"], cores, memory, mounts, volumes, ray | {"env": environment})
    if plan.device == "gpu":
        for kind in worker["containers"][0]["resources"].values():
            kind[ray["gpu"]] = str(ranks)
        worker["tolerations"] = [{"key": ray["gpu"], "operator": "Exists", "effect": "NoSchedule"}]
    head = copy.deepcopy(pod("head", ray["image"], HEAD_CPUS, HEAD_GB, mounts, volumes, {}))
    objects = {"object-store-memory": str(shm // OBJECTS)}
    count = plan.nodes * ray["replicas"]
    workers = {
        "groupName": "ranks", "replicas": count, "minReplicas": count, "maxReplicas": count,
        "rayStartParams": objects, "template": {"spec": worker},
    }  # fmt: skip
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": model},
        "spec": {
            "serveConfigV2": yaml.safe_dump(served, sort_keys=False),
            "rayClusterConfig": {
                "rayVersion": ray["version"],
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0", **objects},
                    "template": {"spec": head},
                },
                "workerGroupSpecs": [workers],
            },
        },
    }


def pod(
    name: str, image: str, cores: int, memory: int, mounts: list, volumes: list, ray: dict[str, Any]
) -> dict[str, Any]:
    """One container; what it may take is what it asks for."""
    asked = {"cpu": str(cores), "memory": f"{memory}G"}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **ray.get("env", {})}
    found: dict[str, Any] = {
        "containers": [
            {
                "name": f"ray-{name}",
                "image": image,
                "env": [{"name": key, "value": value} for key, value in quiet.items()],
                "resources": {"limits": dict(asked), "requests": dict(asked)},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if ray.get("node_selector"):
        found["nodeSelector"] = ray["node_selector"]
    return found


def readme(model: str, plan: Plan, weights: int, ray: dict[str, Any]) -> str:
    place, claim = ray["folder"] or model, ray["claim"]
    seconds = vllm.START_SECONDS + weights // (vllm.READ_MB_S * 10**6)
    shape = f"tensor parallel size {plan.tp}, {plan.pp} pipeline stages, {plan.dtype}"
    return f"""\
# {model}, served by Ray Serve on KubeRay

{ray["replicas"]} replicas of {plan.nodes} pods: {shape}, {plan.max_model_len:,} tokens.
`model/` lies in the volume as `{place}`: copy it into the claim `{claim}`, once.

    kubectl apply -k .                                   # or your copy of site/
    kubectl wait rayservice/{model} --for=condition=Ready --timeout={seconds}s
    kubectl port-forward service/{model}-serve-svc 8000 &
    ./smoke http://127.0.0.1:8000

It serves right when ./smoke says so. The manifests were held against KubeRay's definition and Ray's
schema; they were never applied to a cluster by those who made them.
"""
