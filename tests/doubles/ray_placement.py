"""Has Ray's own scheduler place a RayService's applications: real raylets, with stand-ins for the models.

    <python of envs/vllm> ray_placement.py MANIFEST TRIES [FIRST]

In a network of its own. What vLLM's deployments ask for is what Ray's own code says; each group's nodes
offer what KubeRay would tell them. All nodes, then all applications; with FIRST, nodes with a resource of
their own come up first, then that application: pods start in any order. Prints, of each try, what
came up. A try ends when all are up, or when one waits for a resource of its own on a node whose CPUs
others have.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {
    "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "SPT_NOENV": "1",
    # else /tmp/ray, which may be another user's, or missing; short, for Ray's sockets
    "RAY_TMPDIR": tempfile.mkdtemp(prefix="r", dir="/tmp"),
}  # fmt: skip

import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.llm._internal.serve.core.ingress.ingress import OpenAiIngress
from ray.llm._internal.serve.core.server.llm_server import LLMServer

LIMIT = 150  # seconds until all are up, on a busy machine
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


def offers(group, more):
    """Of a pod: rayStartParams before the container's limits."""
    start = group.get("rayStartParams", {})
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    own = json.loads(json.loads(start["resources"])) if "resources" in start else {}
    return {
        "num_cpus": int(start.get("num-cpus", limits["cpu"])),
        "num_gpus": int(start.get("num-gpus", limits.get("nvidia.com/gpu", 0))),
        "resources": {**own, **more},
    }


class Standin:
    def __init__(self, *_):
        pass

    def __call__(self):
        return "up"


def deployment(name, options):
    quick = {"graceful_shutdown_timeout_s": 0.1, "graceful_shutdown_wait_loop_s": 0.1}
    return serve.deployment(type(name, (Standin,), {}), name=name, **options, **quick)


def application(one):
    if "llm_configs" not in one["args"]:
        (said,) = one["deployments"]
        options = {key: said[key] for key in ("num_replicas", "ray_actor_options")}
        return deployment("Model", options).bind()
    llms = [LLMConfig(**llm) for llm in one["args"]["llm_configs"]]
    bound = []
    for llm in llms:
        options = LLMServer.get_deployment_options(llm)
        options["ray_actor_options"].pop("runtime_env", None)
        bound.append(deployment("LLM", options).bind())
    return deployment("Ingress", OpenAiIngress.get_deployment_options(llms)).bind(*bound)


def starved(own):
    """Does a node still have a resource that one application alone asks for, and no CPU beside it?"""
    for node in ray._private.state.available_resources_per_node().values():
        if any(node.get(name) for name in own) and not node.get("CPU"):
            return True
    return False


def running():
    states = serve.status().applications
    return sorted(name for name, state in states.items() if state.status == "RUNNING")


def wait(until):
    """Until it held at 25 looks on end, five a second."""
    end, held = time.monotonic() + LIMIT, 0
    while time.monotonic() < end and held < 25:
        held = held + 1 if until() else 0
        time.sleep(0.2)


def run(applications):
    serve.run_many(
        [serve.RunTarget(application(one), one["name"], one["route_prefix"]) for one in applications],
        wait_for_ingress_deployment_creation=False, wait_for_applications_running=False,
    )  # fmt: skip


def main(path, tries, first=""):
    spec = yaml.safe_load(Path(path).read_text())["spec"]
    config, served = spec["rayClusterConfig"], yaml.safe_load(spec["serveConfigV2"])["applications"]
    kinds = {
        llm.get("accelerator_type") for one in served for llm in one["args"].get("llm_configs", [])
    }
    more = {f"accelerator_type:{kind}": 1.0 for kind in kinds if kind}
    nodes = [
        offers(group, more)
        for group in config["workerGroupSpecs"]
        for _ in range(group["replicas"])
    ]
    asked = [actor["ray_actor_options"] for one in served for actor in one.get("deployments", [])]
    hungry = [options for options in asked if options.get("num_cpus", 1)]  # for a CPU beside it
    own = {name for options in hungry for name in options.get("resources", {})}
    head = {**offers(config["headGroupSpec"], {}), **SMALL}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)

    def come_up(nodes):
        for node in nodes:
            cluster.add_node(**node, object_store_memory=80 << 20)

    serve.start(http_options={"location": "NoServer"})
    if first:
        come_up(node for node in nodes if own & node["resources"].keys())
        run([one for one in served if one["name"] == first])
        wait(lambda: starved(own))
        nodes = [node for node in nodes if not own & node["resources"].keys()]
    come_up(nodes)
    found = []
    for _ in range(int(tries)):
        run([one for one in served if one["name"] != first])
        wait(lambda: len(running()) == len(served) or (running() and starved(own)))
        found.append(running())
        starves = starved(own)
        for one in served if len(running()) == len(served) else ():
            serve.delete(one["name"])
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()
    asked = sorted(one["name"] for one in served)
    print("FOUND" + json.dumps({"asked": asked, "up": found, "starves": starves}))


try:
    main(*sys.argv[1:])
finally:
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
