"""A RayService checked against KubeRay's definition, Ray's schema, and what its own groups offer.

KubeRay and Ray take most of what is found here in silence: replicas that no node can hold stay
"initializing" for ever, and a field that nobody reads has no effect.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

from ingot.base import yaml_text
from ingot.base.refused import Refused
from ingot.serving.kuberay import definition
from ingot.serving.kuberay.placement import MOST, stuck
from ingot.serving.rayserve import serve_config
from ingot.serving.rayserve.fields import Fault, walk

MIG = "nvidia.com/mig-"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
RAY_TAG = re.compile(r"/ray(?:-llm|-ml)?:(\d+\.\d+\.\d+)")
NAME = "[a-z]([a-z0-9-]{0,45}[a-z0-9])?"  # KubeRay adds to it, and services take 63 characters
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGT", 1)
}


@dataclass(frozen=True)
class Group:
    """Pods of one kind, as Ray sees them: `most` of them, each with these resources."""

    name: str
    most: float
    offers: dict[str, float]


def read(path: Path) -> list[dict]:
    """Every document of a file.  Refused: what is no YAML, and a file without a RayService."""
    found = [one for one in yaml_text.read(path, "manifests") if one]
    if not any(isinstance(one, dict) and one.get("kind") == "RayService" for one in found):
        raise Refused(f"{path}: no RayService in it, expected one; name the right file")
    return [one for one in found if isinstance(one, dict)]


def faults(document: dict, pinned: bool = False) -> Iterator[Fault]:
    """One per fault of a RayService; `pinned`: of a bundle of ours, whose images have digests."""
    kind = document.get("kind", "RayService")
    found = list(walk(document, definition.ROOT, kind, definition.OBJECTS))
    yield from found
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not re.fullmatch(NAME, str(name)):
        yield Fault(
            "RayService.metadata.name", f"{name}, expected {NAME}, as names of services are"
        )
    if any(fault.shape for fault in found):
        return
    if not str(document.get("apiVersion")).startswith("ray.io/v1"):
        yield Fault("RayService.apiVersion", f"{document.get('apiVersion')}, expected ray.io/v1")
    if not document.get("spec"):
        yield Fault("RayService.spec", "missing, expected a cluster and what it serves; write it")
        return
    cluster = document["spec"]["rayClusterConfig"]
    try:
        (config,) = yaml_text.documents(document["spec"].get("serveConfigV2") or "") or [None]
    except yaml_text.NotYaml as error:
        yield Fault("serveConfigV2", yaml_text.told(error, "a mapping"))
        return
    except ValueError:
        yield Fault("serveConfigV2", "several documents, expected one")
        return
    pods = [(name, group["template"].get("spec")) for name, group, _ in _groups(cluster)]
    if empty := [name for name, pod in pods if not pod or not pod["containers"]]:
        yield Fault(f"{empty[0]}.template.spec", "has no container, expected one of Ray; write it")
        return
    for name, group, _ in _groups(cluster):
        said = (group.get("rayStartParams") or {}).get("resources")
        if custom(said) is None:
            yield Fault(
                f"{name}.rayStartParams.resources", f"{said!r}, expected JSON: name, number"
            )
            return
    for path, pod in pods:
        yield from _containers(path, pod, pinned)
    yield from _versions(cluster, pods)
    served = list(serve_config.faults(config, engine=pinned))
    yield from served
    if config and not any(fault.shape for fault in served):
        groups = list(map(_group, _groups(cluster)))
        short = list(_capacity(config, groups))
        yield from short or _placement(config, groups)


def _groups(cluster: dict) -> Iterator[tuple[str, dict, float]]:
    """Name, spec and how many pods at most: without an autoscaler nobody adds one."""
    yield "headGroupSpec", cluster["headGroupSpec"], 1
    for one in cluster.get("workerGroupSpecs") or []:
        most = one.get("replicas")
        if cluster.get("enableInTreeAutoscaling"):
            most = one.get("maxReplicas", inf)
        hosts = one.get("numOfHosts") or 1
        yield (
            one["groupName"],
            one,
            0 if one.get("suspend") else (1 if most is None else most) * hosts,
        )


def _containers(path: str, pod: dict, pinned: bool) -> Iterator[Fault]:
    for one in pod["containers"]:
        image, where = str(one.get("image")), f"{path}.{one['name']}"
        name = image.rpartition("/")[2]
        if pinned and not DIGEST.search(image):
            yield Fault(f"{where}.image", f"{image}, expected a digest; write NAME@sha256:...")
        elif "@" not in name and (":" not in name or name.endswith(":latest")):
            yield Fault(f"{where}.image", f"{image}, expected a version or a digest; name one")
        asked = one.get("resources") or {}
        limits, requests = asked.get("limits") or {}, asked.get("requests") or {}
        for gpu in GPUS:
            if gpu in requests and quantity(requests[gpu]) != quantity(limits.get(gpu)):
                found = f"requests {requests[gpu]} and limits {limits.get(gpu)}"
                yield Fault(f"{where}.resources.{gpu}", f"{found}, expected the same")
        for variable in one.get("env") or []:
            if serve_config.SECRET_ENV.search(variable["name"]) and variable.get("value"):
                own = f"{where}.env.{variable['name']}"
                yield Fault(own, "a secret in plain text, expected a secretKeyRef; move it")


def _versions(cluster: dict, pods: list[tuple[str, dict]]) -> Iterator[Fault]:
    """Head and workers run one Ray, which is the one that rayVersion says."""
    said = cluster.get("rayVersion")
    for path, pod in pods:
        if (
            tag := RAY_TAG.search(str(pod["containers"][0].get("image")))
            if pod["containers"]
            else None
        ):
            said = said or tag[1]
            if tag[1] != said:
                yield Fault(
                    f"{path}.image",
                    f"has Ray {tag[1]}, expected {said} as everywhere; use one image",
                )


def _group(found: tuple[str, dict, float]) -> Group:
    """As KubeRay reads it: rayStartParams, or the container's limits; the group's own `resources` last."""
    name, spec, most = found
    start, own = spec.get("rayStartParams") or {}, spec.get("resources") or {}
    limits = (spec["template"]["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    gpus = (one for key, one in limits.items() if key.endswith("gpu") or key.startswith(MIG))
    offers = {
        "CPU": quantity(start.get("num-cpus", limits.get("cpu"))),
        "GPU": quantity(start.get("num-gpus", next(gpus, 0))),
        **(custom(start.get("resources")) or {}),
        **{key: quantity(one) for key, one in own.items()},
    }
    if offers["CPU"] != inf:
        offers["CPU"] = ceil(offers["CPU"])
    return Group(name, most, offers)


def custom(said: str | None) -> dict[str, float] | None:
    """JSON in a string of YAML, often quoted once more; None where it is none."""
    try:
        found = json.loads((said or "{}").strip("'\"").replace('\\"', '"'))
        return {str(name): float(count) for name, count in found.items()}
    except (ValueError, TypeError, AttributeError):
        return None


def quantity(said: Any) -> float:
    """Kubernetes' 500m, 2, 16Gi; without one, no limit."""
    if said is None:
        return inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(said))
    return float(match[1]) * UNITS.get(match[2], 1) if match else inf


def _capacity(config: dict, groups: list[Group]) -> Iterator[Fault]:
    """Each replica fits on a node, and all of them into the groups together."""
    total: dict[str, float] = {}
    for path, count, asks in _replicas(config):
        room = sum(group.most * _times(group, asks) for group in groups if group.most)
        shown = " and ".join(f"{one:g} {name}" for name, one in asks.items())
        if not room:
            yield Fault(
                path, f"no node offers {shown}, expected one; the replica would wait for ever"
            )
        elif room < count:
            yield Fault(
                path, f"{count} times {shown}, and the groups hold it {room:g} times; add nodes"
            )
        for name, one in asks.items():
            total[name] = total.get(name, 0) + one * count
    for name, asked in total.items():
        offered = sum(group.offers.get(name, 0) * group.most for group in groups if group.most)
        if asked > offered:
            said = f"{asked:g} {name} asked in all, and the groups offer {offered:g}; add nodes"
            yield Fault("serveConfigV2", said)


def _placement(config: dict, groups: list[Group]) -> Iterator[Fault]:
    """Where there is enough in all, each finds its node in whatever order Ray places them."""
    most = max(sum(group.most for group in groups), sum(count for _, count, _ in _replicas(config)))
    if most > MOST:
        return
    wanted = [(path, asks) for path, count, asks in _replicas(config) for _ in range(int(count))]
    nodes = [group.offers for group in groups for _ in range(int(group.most))]
    if found := stuck(wanted, nodes):
        shown = " and ".join(f"{one:g} {name}" for name, one in found.asks.items())
        taker = f" once {found.taker} has it" if found.taker else " where others stand"
        yield Fault(
            found.path,
            f"{shown} may be on no node{taker}; give each a group or a resource that the other lacks",
        )


def _times(group: Group, asks: dict[str, float]) -> float:
    """How often one pod holds it."""
    offers = [(group.offers.get(name, 0), one) for name, one in asks.items()]
    return min((has // one for has, one in offers if has != inf), default=inf)


def _replicas(config: dict) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Where it is said, how many, what each takes of one node.  An engine's ranks may lie on several."""
    for number, one in enumerate(config["applications"]):
        path = f"serveConfigV2.applications[{number}]"
        for count, deployment in enumerate(one.get("deployments") or []):
            options = deployment.get("ray_actor_options")  # else what the code says
            if options and (asks := _asks(options)):
                yield f"{path}.deployments[{count}]", _least(deployment), asks
        for count, llm in enumerate(serve_config.llms(one)):
            found = f"{path}.args.llm_configs[{count}]"
            least = _least(llm.get("deployment_config") or {})
            for number, asks in _ranks(llm):
                yield found, least * number, asks
        if serve_config.llms(one):
            yield f"{path} (its ingress)", 1, {"CPU": 1}


def _ranks(llm: dict) -> Iterator[tuple[int, dict[str, float]]]:
    """What one replica of an engine takes, where it follows from the number of its ranks."""
    kind = (llm.get("accelerator_config") or {}).get("kind")
    special = str(llm.get("accelerator_type")).startswith("TPU") or kind == "tpu"
    if llm.get("placement_group_config") or special:
        return
    engine = llm.get("engine_kwargs") or {}
    ranks = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1)
    if kind == "cpu":
        yield 1, {"CPU": ranks + 1}  # of one node, and one for the replica itself
    else:
        yield ranks, {"GPU": 1}
        yield 1, {"CPU": 1}


def _least(deployment: dict) -> int:
    """How many replicas there always are."""
    scaling = deployment.get("autoscaling_config") or {}
    found = scaling.get("min_replicas", 1) if scaling else deployment.get("num_replicas", 1)
    return found if isinstance(found, int) else 1


def _asks(options: dict) -> dict[str, float]:
    own = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    asked = {**own, **(options.get("resources") or {})}
    return {name: one for name, one in asked.items() if one}
