"""Ray, where vLLM is to use it over several nodes: started on each, and counted before the model is loaded.

Run as a program it counts: ray_cluster.py NODES SECONDS; the numbers of the nodes that are missing go to
standard output.  RAY_ADDRESS names the head.
"""

import json
import sys
import time

MARK = "ingot_node_"  # a resource of each node, by its rank: addresses need not tell them apart
OBJECTS = 200 << 20  # bytes of Ray's object store, which vLLM hardly uses
PORTS = (  # else workers take 10002 to 19999, which is where servers are
    "min-worker", "max-worker", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent",
    "metrics-export",
)  # fmt: skip
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",  # else a process of Ray's writes its title over what we know it by
}


def words(rank: int, address: str, head: str, port: int, gpus: int, scratch: str) -> list[str]:
    """The command of one node.  All ports but the head's are the kernel's choice, so that none is taken."""
    found = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    found += ["--node-ip-address", address, "--num-gpus", str(gpus), "--num-cpus", str(gpus + 1)]
    found += ["--object-store-memory", str(OBJECTS), "--temp-dir", scratch]
    found += ["--resources", json.dumps({f"{MARK}{rank}": 1})]
    for name in PORTS:
        found += [f"--{name}-port", "0"]
    if rank:
        return [*found, "--address", f"{head}:{port}"]
    return [*found, "--head", "--port", str(port), "--include-dashboard", "false",
            "--ray-client-server-port", str(port + 1)]  # fmt: skip


def environment(key: str, head: str, port: int) -> dict[str, str]:
    """Who does not know the job's key is turned away: Ray listens on every address of a node."""
    return {
        **QUIET, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": key, "RAY_ADDRESS": f"{head}:{port}",
    }  # fmt: skip


def count(nodes: int, seconds: float) -> list[int]:
    """Wait for every node; the numbers of those that are missing at the end."""
    import ray

    missing, end = list(range(nodes)), time.monotonic() + seconds
    while missing and time.monotonic() < end:
        try:
            if not ray.is_initialized():
                ray.init(log_to_driver=False, logging_level="ERROR")
            found = ray.cluster_resources()
        except (ConnectionError, RuntimeError, TimeoutError):
            found = {}  # the head has not come yet
        missing = [rank for rank in missing if f"{MARK}{rank}" not in found]
        time.sleep(0.3)
    return missing


if __name__ == "__main__":
    print(json.dumps(count(int(sys.argv[1]), float(sys.argv[2]))))
