"""Serve this folder by Ray Serve, on this machine or on a Ray cluster; end with all that was started.

It is ready when each application has said what smoke.json knows.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import asking
import sums
from guard import SLOW, Guard
from leftovers import Leftovers
from network import free

from place import FOLDER, Refused, read_bundle

LLM = "ray.serve.llm:build_openai_app"
EACH = 10  # seconds between lines of progress
SHORT = 24  # letters of a folder, so that the names of sockets in it are within 107 bytes
TRIES = 3  # of Ray's start, on a machine that is too busy for it
TRY = "INGOT_RAYSERVE_TRY"
STORE = 100 << 20  # bytes of Ray's object store: requests are small
VENDORS = {"amd_cpu": "AuthenticAMD", "intel_cpu": "GenuineIntel"}
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "ORT_DISABLE_TELEMETRY": "1",  # else it leaves a file of its session in TMPDIR
    "SPT_NOENV": "1",  # else a process of Ray's writes its title over what we know it by
    "RAY_worker_niceness": "0",  # else its workers yield to whatever else runs here: theirs is 15
    "RAY_SERVE_LOG_TO_STDERR": "0", "PYTHONDONTWRITEBYTECODE": "1",  # no file more in this folder
}  # fmt: skip


class Stopped(Exception):
    """By SIGTERM or Ctrl-C."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def configuration(bundle: dict, options: argparse.Namespace) -> dict:
    """serve.yaml, with this folder and this address in it; for a cluster, what its processes need."""
    import yaml

    found = yaml.safe_load((FOLDER / "serve.yaml").read_text())
    found["http_options"] |= {"host": options.host, "port": options.port}
    for one in found["applications"]:
        if options.address or options.print:
            one["runtime_env"] = {"env_vars": environment(bundle)}
        if one["import_path"] == LLM:
            for llm in one["args"]["llm_configs"]:
                llm["model_loading_config"]["model_source"] = str(FOLDER / "model")
    return found


def environment(bundle: dict) -> dict[str, str]:
    """Of each process that serves."""
    return {**QUIET, **bundle["environment"], "PYTHONPATH": str(FOLDER / "parts")}


def check(bundle: dict, options: argparse.Namespace) -> None:
    for name, wanted in bundle["pins"].items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found != wanted:
            raise Refused(f"{name}: {found}, expected {wanted}; install requirements.lock")
    if not options.address and not free(options.host, options.port):
        raise Refused(f"{options.host}:{options.port}: taken, expected a free port; name another")
    at = os.statvfs("/dev/shm")
    room, needed = at.f_bavail * at.f_frsize, STORE + bundle["shm_bytes"]
    if not options.address and room < needed:
        raise Refused(f"/dev/shm: {room >> 20} MiB free, expected {needed >> 20}; enlarge it")
    say(f"{sums.hold(FOLDER)} files are those that were built")


def begin(bundle: dict, options: argparse.Namespace, scratch: str) -> None:
    """Ray, of this machine's own, or the cluster at `address`; refused where it lacks what is asked for."""
    asks = bundle["asks"]
    if options.address:
        import ray
        from ray import serve

        ray.init(address=options.address, log_to_driver=False)
        running = serve.status()
        if running.applications or running.proxies:
            raise Refused(
                f"{options.address}: Ray Serve runs there, expected none: its applications would go; "
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
            _node_ip_address=options.host if options.host != "0.0.0.0" else None, _temp_dir=scratch,
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


def watch(names: list[str], left: Leftovers) -> None:
    """Say when an application is down, and when it is back."""
    down: set[str] = set()
    while True:
        time.sleep(1)
        left.look(every=5)
        found = states()
        for name in names:
            state, why = found.get(name, ("GONE", ""))
            if (state == "RUNNING") == (name in down):
                say(f"{name}: {state.lower()}{'' if state == 'RUNNING' else f': {telling(why)}'}")
                down ^= {name}


def run(options: argparse.Namespace, scratch: str, left: Leftovers) -> None:
    bundle = read_bundle()
    check(bundle, options)
    config = configuration(bundle, options)
    os.environ.update({**environment(bundle), **left.environment, "TMPDIR": scratch})
    began = time.monotonic()
    begin(bundle, options, scratch)
    hear(stop)  # Ray has put its own handlers there
    os.environ[TRY] = str(TRIES)  # it is up: its death would be no slow start
    options.ours = True
    deploy(config)
    names = [one["name"] for one in config["applications"]]
    wait(names, bundle["start_seconds"])
    url = f"http://{options.host}:{options.port}"
    for line in asking.each(url, "", json.loads((FOLDER / "smoke.json").read_bytes())):
        say(line)
    say(f"ready after {time.monotonic() - began:.0f} s: {url}")
    watch(names, left)


def end(left: Leftovers, ours: bool) -> None:
    hear(signal.SIG_IGN)
    sys.stdout.flush()
    for output in (1, 2):  # Ray's own words on what it kills itself
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        with contextlib.suppress(Exception):
            if ours:  # else it is another's, and this program was refused
                ray.serve.shutdown()
        left.look()
        ray.shutdown()
    left.end()


def keep_logs(scratch: Path) -> None:
    """Of a start that failed: all that Ray says of why goes with its folder."""
    logs = [path for path in scratch.glob("session_*/logs") if not path.parent.is_symlink()]
    for path in logs:
        kept = tempfile.mkdtemp(prefix="ingot-ray-logs-", dir=scratch.parent)
        shutil.copytree(path, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        print(f"Ray's own logs: {kept}", flush=True)


def hear(handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def stop(*_) -> None:
    raise Stopped


def main() -> int:
    parser = argparse.ArgumentParser(prog="./serve", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="who may ask (default: this machine)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--address", help="of a Ray cluster that runs already, all of whose nodes see this folder"
    )
    parser.add_argument(
        "--print", action="store_true", help="the configuration for `serve deploy`, and no more"
    )
    options = parser.parse_args()
    options.ours = False  # a Serve that this program has started
    if options.print:
        import yaml

        print(yaml.safe_dump(configuration(read_bundle(), options), sort_keys=False), end="")
        return 0
    folder = os.environ.get("TMPDIR") or "/tmp"
    scratch = Path(
        tempfile.mkdtemp(prefix="ingot-ray-", dir=folder if len(folder) <= SHORT else "/tmp")
    )
    left, usual = Leftovers([scratch]), dict(os.environ)

    def remove() -> None:
        left.end()
        shutil.rmtree(scratch, ignore_errors=True)

    def dead(why: str) -> None:
        """The raylet has ended: what waits for it inside Ray would wait for long."""
        number = int(os.environ.get(TRY, "1"))
        if why == SLOW and number < TRIES:
            say(f"Ray's raylet ended: {why}; Ray is started again ({number + 1} of {TRIES})")
            remove()
            os.execve(sys.executable, sys.orig_argv, {**usual, TRY: str(number + 1)})
        print(f"error: Ray's raylet ended: {why}", flush=True)
        keep_logs(scratch)
        remove()
        os._exit(1)

    def unheard() -> None:
        say("stopped")
        remove()
        os._exit(0)

    status = 1
    guard = Guard(left, scratch, dead, unheard)
    try:
        hear(stop)
        run(options, str(scratch), left)
    except (Stopped, SystemExit) as why:  # the latter by Ray's own handler, while it starts
        if isinstance(why, Stopped) or guard.heard():
            say("stopped")
            status = 0
        else:
            print(f"error: Ray ended this program with exit status {why.code}", flush=True)
            keep_logs(scratch)
    except Refused as why:
        print(f"error: {why}", flush=True)
        keep_logs(scratch)
    except Exception as why:
        guard.settle()
        print(f"error: {telling(str(why)) if str(why) else type(why).__name__}", flush=True)
        keep_logs(scratch)
    finally:
        guard.ending = True
        end(left, options.ours)
        shutil.rmtree(scratch, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
