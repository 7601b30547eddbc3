"""What a user does with a bundle: submit, status, smoke, connect, stop."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import asking

from place import (  # fmt: skip
    FOLDER,
    LOCAL,
    Refused,
    Site,
    asked,
    read_bundle,
    read_site,
    runs_here,
    state_folder,
)

NEVER = (
    "PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "QOSMaxWallDurationPerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "InvalidAccount", "InvalidQOS",
)  # fmt: skip
PASSED = {  # to sbatch, as they are
    **{
        key: key
        for key in ("account", "partition", "qos", "constraint", "reservation", "time", "mem")
    },
    "cpus": "cpus-per-task",
}


def submitted(site: Site, options: argparse.Namespace) -> None:
    """Ask SLURM whether it can, then do it."""
    if not shutil.which("sbatch"):
        raise Refused(
            "sbatch: not on the PATH, expected SLURM; start it on this machine by ./serve"
        )
    if not site.get("python"):
        raise Refused(
            f"{site.path}: python is missing, expected one with requirements.lock installed"
        )
    flags = [f"--{flag}={site.get(key)}" for key, flag in PASSED.items() if site.get(key)]
    layout = read_bundle()["layout"]
    if site.get("gpu") and layout["gpus_per_node"]:
        flags.append(f"--gpus-per-node={site.get('gpu')}:{layout['gpus_per_node']}")
    script = [*flags, *options.more, str(FOLDER / "serve.sbatch")]
    tried = subprocess.run(
        ["sbatch", "--test-only", *script], capture_output=True, text=True, timeout=120, check=False
    )
    if tried.returncode:
        said = tried.stderr.strip().splitlines() or ["no reason given"]
        first = re.sub("^(sbatch: error|allocation failure): ", "", said[0])
        raise Refused(f"sbatch: {first}; correct {site.path}")
    done = subprocess.run(
        ["sbatch", "--parsable", *script], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise Refused(f"sbatch: {done.stderr.strip()}")
    job = done.stdout.strip().partition(";")[0]
    if reason := never(job):
        subprocess.run(["scancel", job], timeout=60, check=False)
        raise Refused(f"sbatch: {reason}: the job would wait for ever; correct {site.path}")
    print(f"job {job} is submitted; ./status follows it, and its words are in ingot-{job}.log")


def never(job: str) -> str:
    """Why a job can never start, where SLURM takes it all the same."""
    for _ in range(6):
        words = queue(["--job", job]).split()
        if not words or words[1] != "PENDING":
            return ""
        if (reason := words[-1].strip("()")) in NEVER:
            return reason
        time.sleep(0.5)
    return ""


def state(site: Site, options: argparse.Namespace) -> dict:
    """Of the job asked for, or of the newest of this bundle that still runs."""
    found = {}
    for path in state_folder(site).glob("*/state.json"):
        try:
            one = json.loads(path.read_bytes())
            one |= {"folder": path.parent, "key": (path.parent / "key").read_text()}
            found[path.stat().st_mtime] = one
        except (OSError, ValueError):
            continue  # of a job that ends now
    for _, one in sorted(found.items(), reverse=True):
        wanted = one["job"] == options.job if options.job else one["bundle"] == str(FOLDER)
        if not wanted:
            continue
        said = (one["job"], one["node"], one["bundle"])
        if runs_here(*said) if one["job"].startswith(LOCAL) else queue(["--job", one["job"]]):
            return one
    raise Refused(f"{options.job or FOLDER}: no server of it runs; ./submit starts one")


def queue(words: list[str]) -> str:
    command = ["squeue", "--noheader", "--format=%i %T %M %L %N %r", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def own_jobs() -> list[str]:
    """Those that were submitted from this very folder, as squeue shows them."""
    bundle = read_bundle()
    name, found = f"{bundle['model']}_tp{bundle['layout']['tp']}", []
    for line in queue(["--me", f"--name={name}"]).splitlines():
        if f"={FOLDER / 'serve.sbatch'}\n" in asked("scontrol", "show", "job", line.split()[0]):
            found.append(line)
    return found


def status(site: Site, options: argparse.Namespace) -> None:
    try:
        found = state(site, options)
    except Refused:
        lines = [queue(["--job", options.job])] if options.job else own_jobs()
        if not any(lines):
            raise
        print("\n".join(lines) + "  (job, state, time, time left, nodes, reason)")
        return
    print(f"{found['job']} on {found['node']}: {found['phase']}, {found['url']}/v1")


def smoke(site: Site, options: argparse.Namespace) -> None:
    found = state(site, options)
    print(
        asking.smoke(found["url"], found["key"], json.loads((FOLDER / "smoke.json").read_bytes()))
    )


def connect(site: Site, options: argparse.Namespace) -> None:
    found = state(site, options)
    url, folder = found["url"], found["folder"]
    at = url.removeprefix("http://")
    print(
        f"ssh -N -L 127.0.0.1:8000:{at} {found['node']}    # from elsewhere: http://127.0.0.1:8000"
    )
    body = {
        "model": found["model"],
        "prompt": "San Francisco is a",
        "max_tokens": 7,
        "temperature": 0,
    }
    print(
        f"curl -H @{folder}/header -H 'Content-Type: application/json' {url}/v1/completions \\\n"
        f"    -d '{json.dumps(body)}'"
    )


def stop(site: Site, options: argparse.Namespace) -> None:
    try:
        job = options.job or state(site, options)["job"]
    except Refused:
        if not (lines := own_jobs()):
            raise
        job = lines[-1].split()[0]
    if job.startswith(LOCAL):
        node = state(site, argparse.Namespace(job=job))["node"]
        if node != os.uname().nodename:
            raise Refused(f"{job}: runs on {node}; stop it there")
        os.kill(int(job.removeprefix(LOCAL)), signal.SIGTERM)
        print(f"{job} is told to stop")
        return
    done = subprocess.run(["scancel", job], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Refused(f"{job}: {done.stderr.strip() or 'scancel failed'}")
    print(f"job {job} is told to stop")


VERBS = {"submit": submitted, "status": status, "smoke": smoke, "connect": connect, "stop": stop}


def main() -> int:
    verb = sys.argv.pop(1)
    parser = argparse.ArgumentParser(prog=f"./{verb}", description=VERBS[verb].__doc__)
    if verb == "submit":
        parser.add_argument("more", nargs="*", help="more options of sbatch, after --")
    else:
        parser.add_argument("job", nargs="?", default="", help="a job's id; default: the newest")
    try:
        VERBS[verb](read_site(), parser.parse_args())
    except (Refused, OSError, ValueError, subprocess.TimeoutExpired) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
