"""What a bundle for KubeRay holds: model, manifests, a site's overlay, what must be answered."""

import copy
import json
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from ingot.base.launch import FOLDER
from ingot.base.refused import Refused
from ingot.base.sealed import Contents
from ingot.serving.kuberay import manifest
from ingot.serving.rayserve import bundle as rayserve
from ingot.serving.rayserve.applications import ENGINES, LLM, applications
from ingot.serving.rayserve.bundle import Sources
from ingot.serving.vllm import bundle as vllm
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.plan import Plan

ASKING = ("asking.py", "place.py")  # of the parts: what asks a server
SMOKE = """\
#!/bin/sh
# Ask a server what smoke.json knows the answer to: ./smoke http://127.0.0.1:8000
{folder}exec "${{PYTHON:-python3}}" -B "$here/parts/asking.py" "$@"
"""
HEAD_CPUS, HEAD_GB = 4, 16
CPU_GB = 4  # of an application on CPUs, beside its model twice: Ray, and the KV cache
CPU_BESIDE = 2  # a replica's own, and the ingress's
CLUSTER = "/spec/rayClusterConfig"
HEAD, WORKERS = (
    f"{CLUSTER}/headGroupSpec/template/spec",
    CLUSTER + "/workerGroupSpecs/{}/template/spec",
)
SITE = """\
# Yours: edit it, and apply it in place of the folder above: kubectl apply -k site/
resources: [../base]
# namespace: serving
"""
CLAIM = """\
      - {{op: replace, path: {pod}/volumes/0/persistentVolumeClaim/claimName, value: {claim}}}
"""
OBJECTS = 4  # of shared memory: the part that Ray's object store may take


def contents(
    model: str,
    ray: dict[str, Any],
    parts: list[Path],
    lock: list[Path],
    reference: list[Path],
    settings: dict[str, Any],
    **served: Any,
) -> Contents:
    import yaml

    sources = rayserve.gathered(model, ray, lock[0], settings, **served)
    found = service(model, sources, settings, ray)
    if wrong := next(manifest.faults(found, pinned=True), None):
        raise Refused(f"models.{model}.ray: {wrong}")
    needed = ASKING if ray["apps"] == [LLM] else [path.name for path in parts]
    about = rayserve.described(model, sources, ray, lock[0])
    known = {"applications": rayserve.smoke(model, reference, sources, ray)}
    return {
        **sources.files,
        **{f"parts/{path.name}": path for path in parts if path.name in needed},
        "base/rayservice.yaml": yaml.safe_dump(found, sort_keys=False, width=1000),
        "base/kustomization.yaml": "resources: [rayservice.yaml]\n",
        "kustomization.yaml": "resources: [base]\n",
        "site/kustomization.yaml": site(ray),
        "smoke": SMOKE.format(folder=FOLDER),
        "smoke.json": json.dumps(known) + "\n",
        "bundle.json": json.dumps(about, indent=1, sort_keys=True) + "\n",
        "README.md": readme(model, sources, ray),
    }


def site(ray: dict[str, Any]) -> str:
    """An overlay, which names what differs between sites: the claim that holds the model."""
    if "model_image" in ray:
        return SITE
    pods = [HEAD, *(WORKERS.format(number) for number in range(len(ray["apps"])))]
    each = "".join(CLAIM.format(pod=pod, claim=ray["claim"]) for pod in pods)
    return f"{SITE}patches:\n  - target: {{kind: RayService}}\n    patch: |-\n{each}"


def service(
    model: str, sources: Sources, settings: dict[str, Any], ray: dict[str, Any]
) -> dict[str, Any]:
    """The RayService: a head that serves nothing, and a group of pods for each application.

    Each application asks for a resource that its own group alone offers.  Those on CPUs offer no CPU to Ray
    and ask for none: vLLM's ingress, which asks for one anywhere, took it, and their Model waited for ever.
    """
    import yaml

    place, plan = f"/models/{ray['folder'] or model}", sources.plan
    own: dict[str, dict[str, Any]] = {
        name: {**ray[name], "resources": ray[name]["resources"] or {ENGINES[name]: 1}}
        for name in ray["apps"]
        if name in ENGINES
    }
    served = applications(model, plan, settings, ray | own, f"{place}/model", sources.sizes)
    for one in (one for application in served for one in application.get("deployments", ())):
        one["ray_actor_options"]["num_cpus"] = 0
    shm = 2 * plan_of.SHM_PER_RANK * (plan.ranks_per_node if plan else 1)
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
    environment = {"PYTHONPATH": f"{place}/parts"} if own else {}

    def container(name: str, cores: int, memory: int, more: dict[str, Any]) -> dict[str, Any]:
        found = pod(name, ray["image"], cores, memory, mounts, volumes, more)
        return copy.deepcopy(found)

    objects = {"object-store-memory": str(shm // OBJECTS)}
    groups = []
    if plan:
        worker, count = ranks(model, plan, sources, ray, environment, container)
        groups.append(group("ranks", count, objects, worker))
    for name, one in own.items():
        size = sources.bytes_of(ENGINES[name])
        cores, memory = ceil(one["num_cpus"]), ceil(2 * size / 1e9) + CPU_GB
        threads = {"INGOT_THREADS": str(cores)}
        worker = container(name, cores, memory, {"env": environment | threads, **one})
        start = objects | {"num-cpus": "0", "resources": json.dumps(json.dumps(one["resources"]))}
        groups.append(group(name, one["num_replicas"], start, worker))
    head = container("head", HEAD_CPUS, HEAD_GB, {"env": environment})
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": model},
        "spec": {
            "serveConfigV2": yaml.safe_dump({"applications": served}, sort_keys=False),
            "rayClusterConfig": {
                "rayVersion": ray["version"],
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0", **objects},
                    "template": {"spec": head},
                },
                "workerGroupSpecs": groups,
            },
        },
    }


def group(name: str, count: int, start: dict[str, str], worker: dict[str, Any]) -> dict[str, Any]:
    return {
        "groupName": name, "replicas": count, "minReplicas": count, "maxReplicas": count,
        "rayStartParams": start, "template": {"spec": worker},
    }  # fmt: skip


def ranks(
    model: str,
    plan: Plan,
    sources: Sources,
    ray: dict[str, Any],
    environment: dict[str, str],
    container: Callable[..., dict[str, Any]],
) -> tuple[dict[str, Any], int]:
    """The pod of a node's ranks, and how many there are: as many per replica as the plan has nodes."""
    asked = plan_of.asked(plan, sources.bytes_of("model"), vllm.READ_MB_S)
    cores, memory = int(asked["cpus-per-task"]), int(str(asked["mem"]).rstrip("G"))
    if plan.device == "cpu":
        if plan.nodes > 1:
            key = f"models.{model}.vllm.nodes: {plan.nodes}"
            raise Refused(f"{key}, expected 1: Ray keeps ranks on CPUs together")
        cores = plan.ranks_per_node + CPU_BESIDE
    found = container(
        "worker", cores, memory, ray | {"env": environment | plan_of.environment(plan)}
    )
    if plan.device == "gpu":
        for kind in found["containers"][0]["resources"].values():
            kind[ray["gpu"]] = str(plan.ranks_per_node)
        found["tolerations"] = [{"key": ray["gpu"], "operator": "Exists", "effect": "NoSchedule"}]
    return found, plan.nodes * ray["replicas"]


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


def readme(model: str, sources: Sources, ray: dict[str, Any]) -> str:
    place, claim, plan = ray["folder"] or model, ray["claim"], sources.plan
    seconds = vllm.START_SECONDS + sources.weights // (vllm.READ_MB_S * 10**6)
    lines = []
    if plan:
        shape = f"tensor parallel size {plan.tp}, {plan.pp} pipeline stages, {plan.dtype}"
        count = f"{ray['replicas']} replicas of {plan.nodes} pods"
        lines = [f"`/`: vLLM, {count}: {shape}, {plan.max_model_len:,} tokens."]
    for name in ray["apps"]:
        if name in ENGINES:
            count = f"{ray[name]['num_replicas']} replicas"
            lines.append(f"`/{name}`: int8 on CPUs by {ENGINES[name]}, {count}.")
    about = "\n".join(lines)
    return f"""\
# {model}, served by Ray Serve on KubeRay

{about}
This folder lies in the volume as `{place}`: copy it into the claim `{claim}`, once.

    kubectl apply -k .                                   # or your copy of site/
    kubectl wait rayservice/{model} --for=condition=Ready --timeout={seconds}s
    kubectl port-forward service/{model}-serve-svc 8000 &
    ./smoke http://127.0.0.1:8000

It serves right when ./smoke says so. The manifests were checked against KubeRay's definition and Ray's
schema; they were never applied to a cluster by those who made them.
"""
