"""Serve this folder by Ray Serve, on this machine or on a Ray cluster; end with all that was started.

It is ready when each application has said what smoke.json knows.
"""

import argparse
import os
import signal
import sys
from importlib import metadata
from typing import NoReturn

import sums
from network import stop_on_no_port, stop_on_unusable
from program import SLOW, STORE, Program, say

from place import FOLDER, Refused, read_bundle

LLM = "ray.serve.llm:build_openai_app"
TRIES = 3  # of Ray's start, on a machine that is too busy for it
TRY = "INGOT_RAYSERVE_TRY"
HEARD = (signal.SIGTERM, signal.SIGINT)
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "ORT_DISABLE_TELEMETRY": "1",  # else it leaves a file of its session in TMPDIR
    "SPT_NOENV": "1",  # else a process of Ray's writes its title over what we know it by
    "RAY_worker_niceness": "0",  # else its workers yield to whatever else runs here: theirs is 15
    "RAY_SERVE_LOG_TO_STDERR": "0", "PYTHONDONTWRITEBYTECODE": "1",  # no file more in this folder
}  # fmt: skip


class Stopped(Exception):
    """By SIGTERM or Ctrl-C."""


class Failed(Exception):
    """It has been said why."""


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
    if not options.address:
        stop_on_unusable(options.host, options.port, "name another")
    at = os.statvfs("/dev/shm")
    room, needed = at.f_bavail * at.f_frsize, STORE + bundle["shm_bytes"]
    if not options.address and room < needed:
        raise Refused(f"/dev/shm: {room >> 20} MiB free, expected {needed >> 20}; enlarge it")
    say(f"{sums.hold(FOLDER)} files are those that were built")


def served(bundle: dict, options: argparse.Namespace, number: int) -> bool:
    """Serve until it ends: False where Ray was too slow to start, and may be tried again."""
    asked = {
        "config": configuration(bundle, options), "asks": bundle["asks"],
        "seconds": bundle["start_seconds"],
        "host": options.host, "port": options.port, "address": options.address,
    }  # fmt: skip
    program, again = Program(asked, environment(bundle)), False
    try:
        why = program.ended()
        again = why == SLOW and not program.up and number < TRIES
        if not again:
            fail(program, why)
        return False
    except Stopped:
        if program.up and program.failed:  # before it was told to end
            fail(program, program.why())
        if program.up:
            say("stopping")
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        program.stop()
        if again:  # else it ends, whatever comes now
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def fail(program: Program, why: str) -> NoReturn:
    """Say it, whatever signal comes now."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    print(f"error: {why}", flush=True)
    program.keep_logs()
    raise Failed


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
    if options.print:
        import yaml

        print(yaml.safe_dump(configuration(read_bundle(), options), sort_keys=False), end="")
        return 0
    number = int(os.environ.get(TRY, "1"))
    for one in HEARD:
        signal.signal(one, stop)
    try:
        stop_on_no_port(options.port)
        bundle = read_bundle()
        check(bundle, options)
        while not served(bundle, options, number):
            number += 1
            say(f"{SLOW}; Ray is started again ({number} of {TRIES})")
    except Stopped:
        say("stopped")
        os._exit(0)  # a thread may be reading the bundle's files still
    except Failed:
        pass
    except (Refused, OSError, RuntimeError) as why:  # the last: sums.hold's
        print(f"error: {why}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
