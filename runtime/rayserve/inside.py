"""What speaks to Ray: ./serve's child.  It starts Ray or joins a cluster, deploys, and ends with its input.

Run by program.py, with a folder of its own, in which it says that Ray has come up, and why it failed.
"""

import contextlib
import json
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path

import asking
from program import ASKED, ERROR, STORE, UP, say

from place import FOLDER, Refused

EACH = 10  # seconds between lines of progress
VENDORS = {"amd_cpu": "AuthenticAMD", "intel_cpu": "GenuineIntel"}


class Ended(BaseException):
    """Its input has, or it was told to by a signal.  No Exception: what asks a server catches those."""


def begin(asks: dict[str, float], host: str, address: str | None, scratch: Path) -> None:
    """Ray, of this machine's own, or the cluster at `address`; refused where it lacks what is asked for."""
    if address:
        import ray
        from ray import serve

        ray.init(address=address, log_to_driver=False)
        running = serve.status()
        if running.applications or running.proxies:
            raise Refused(
                f"{address}: Ray Serve runs there, expected none: its applications would go; "
                "add ours to its configuration: ./serve --print"
            )
    else:
        # Ray listens on all addresses of the machine: who has no token is turned away
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        cores = len(os.sched_getaffinity(0))
        if asks.get("CPU", 0) > cores:
            say(f"{asks['CPU']:g} CPUs are asked for, and there are {cores}: they will be shared")
        own = {name: one for name, one in asks.items() if name not in ("CPU", "GPU")}
        vendor = Path("/proc/cpuinfo").read_text()
        for name in own:
            if VENDORS.get(name, "") not in vendor:
                raise Refused(
                    f"{name}: asked for, and this CPU is no {VENDORS[name]}; see ray in the catalogue"
                )
        import ray  # which reads its environment here

        ray.init(
            address="local", num_cpus=max(cores, int(asks.get("CPU", 0) + 0.999)), resources=own,
            include_dashboard=False, object_store_memory=STORE, log_to_driver=False, logging_level="ERROR",
            _node_ip_address=host if host != "0.0.0.0" else None, _temp_dir=str(scratch),
        )  # fmt: skip
    offers = ray.cluster_resources()
    for name, one in asks.items():
        if offers.get(name, 0) < one:
            raise Refused(
                f"{name}: {one:g} are asked for, and Ray has {offers.get(name, 0):g}; add nodes"
            )


def deploy(config: dict):
    from ray.serve._private import api
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema(**config)
    client = api.serve_start(
        http_options=schema.http_options.model_dump(), proxy_location=schema.proxy_location
    )
    client.deploy_apps(schema)


def states() -> dict[str, tuple[str, str]]:
    """Of each application: what Ray Serve says, and why."""
    from ray import serve

    found = {}
    for name, one in serve.status().applications.items():
        why = " ".join(d.message for d in one.deployments.values() if d.message) or one.message
        found[name] = (str(getattr(one.status, "value", one.status)), why)
    return found


def wait(names: list[str], limit: float) -> None:
    began = said = time.monotonic()
    while True:
        found = states()
        for name, (state, why) in found.items():
            if state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise Refused(f"{name}: {telling(why)}")
        if all(found.get(name, ("",))[0] == "RUNNING" for name in names):
            return
        now = time.monotonic()
        if now - began > limit:
            slow = [name for name in names if found.get(name, ("",))[0] != "RUNNING"]
            raise Refused(f"{', '.join(slow)}: not running after {limit:.0f} s")
        if now - said >= EACH:
            said = now
            each = ", ".join(f"{name} {state.lower()}" for name, (state, _) in found.items())
            say(f"loading, {now - began:.0f} s: {each}")
        time.sleep(0.3)


def telling(why: str) -> str:
    """The line of a traceback that says what it was."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    errors = [
        line for line in lines if "Error" in line.split(":")[0] and "RayTaskError" not in line
    ]
    return (errors or lines or ["failed without a word"])[-1][:500]


def watch(names: list[str]) -> None:
    """Say when an application is down, and when it is back."""
    down: set[str] = set()
    while True:
        time.sleep(1)
        found = states()
        for name in names:
            state, why = found.get(name, ("GONE", ""))
            if (state == "RUNNING") == (name in down):
                say(f"{name}: {state.lower()}{'' if state == 'RUNNING' else f': {telling(why)}'}")
                down ^= {name}


def serve(asked: dict, began: float) -> None:
    """Until Ended is raised."""
    config = asked["config"]
    deploy(config)
    names = [one["name"] for one in config["applications"]]
    wait(names, asked["seconds"])
    url = f"http://{asked['host']}:{asked['port']}"
    for line in asking.each(url, "", json.loads((FOLDER / "smoke.json").read_bytes())):
        say(line)
    say(f"ready after {time.monotonic() - began:.0f} s: {url}")
    watch(names)


def end(ours: bool) -> None:
    """`ours`: Ray Serve there was started by this program."""
    sys.stdout.flush()
    for output in (1, 2):  # Ray's own words on what it ends itself
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        with contextlib.suppress(Exception):
            if ours:
                ray.serve.shutdown()
        ray.shutdown()


def hear() -> None:
    """Tell the main thread that the input has ended: it waits for Ray, or for an answer."""
    while os.read(0, 64):
        pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


def stop(*_) -> None:
    listen(lambda *_: None)  # once
    raise Ended


def listen(handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, handler)


def main(scratch: Path) -> int:
    asked = json.loads((scratch / ASKED).read_bytes())
    ours, error, began = False, "", time.monotonic()
    try:
        listen(stop)
        begin(asked["asks"], asked["host"], asked["address"], scratch)
        listen(stop)  # Ray has put a handler of its own there
        (scratch / UP).touch()
        threading.Thread(target=hear, daemon=True).start()
        ours = True
        serve(asked, began)
    except Ended:
        pass
    except Refused as why:
        error = str(why)
    except SystemExit as why:  # by Ray, where it gives up
        error = f"Ray ended this program with exit status {why.code}"
    except Exception as why:
        error = telling(str(why)) if str(why) else type(why).__name__
    listen(lambda *_: None)
    if error:
        (scratch / ERROR).write_text(error)
    end(ours)
    return bool(error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
