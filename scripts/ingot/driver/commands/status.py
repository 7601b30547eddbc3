"""What the run of this folder is doing: from another terminal, each job that runs or waits."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from ingot.driver.cluster import status, watch
from ingot.driver.forecast.schedule import duration
from ingot.driver.rules import environment
from ingot.files import claim

EACH = 1.0  # seconds between two looks
CLEAR = "\033[H\033[J"  # of a terminal


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")
    parser.add_argument("--follow", action="store_true", help="until the run has ended")


def run(root: Path, options: Namespace) -> int:
    environment.prepare()
    last = None
    while True:
        found = status.read()
        if found is None:
            print("no run yet in this folder", file=sys.stderr)
            return 1
        alive = status.alive()
        text = shown(found, alive, options.json)
        if options.follow and sys.stdout.isatty():
            print(f"{CLEAR}{text}", flush=True)
        elif text != last:
            print(text, flush=True)
        if not (options.follow and alive):
            return 0
        last = text
        try:
            time.sleep(EACH)
        except KeyboardInterrupt:
            return 0


def shown(found: status.Status, alive: bool, as_json: bool) -> str:
    slurms = any(claim.claimed(output).get("slurm") for output in found.running)
    listed = watch.seen() if alive and slurms else None
    running = found.running.items() if alive else ()
    jobs = {output: described(output, job, listed or {}) for output, job in running}
    if as_json:
        return json.dumps({**asdict(found), "alive": alive, "running": jobs})
    lines = [header(found, alive)]
    for output, job in jobs.items():
        expected = f" of about {duration(job['expected'])}" if job["expected"] else ""
        where = f"  {job['where']}" if job["where"] else ""
        took = duration(time.time() - job["since"])
        lines.append(f"{job['state']:8} {output}  {took}{expected}{where}")
        if job["progress"]:
            lines.append(f"         {job['progress']}")
    lines += [f"failed   {output}  log: {log}" for output, log in found.failed.items()]
    return "\n".join(lines)


def header(found: status.Status, alive: bool) -> str:
    since = time.strftime("%H:%M", time.localtime(found.since))
    counts = f"{found.done} jobs done, {len(found.running)} running, {found.left} in all left"
    if not alive and found.running:
        return (
            f"no run is alive; the last, of {since} (pid {found.pid} on {found.host}), ended while it "
            f"built {', '.join(found.running)}; {found.done} jobs were done, and the same command goes on"
        )
    if not alive:
        failed = f", {len(found.failed)} failed" if found.failed else ""
        return f"no run is alive; the last, of {since}, ended with {found.done} jobs done{failed}"
    end = ""
    if found.expected is not None:
        end = f"; ends about {time.strftime('%H:%M', time.localtime(found.since + found.expected))}"
    return f"run of {since} (pid {found.pid} on {found.host}): {counts}{end}"


def described(output: str, job: dict, listed: dict[str, watch.Seen]) -> dict:
    """The job with its state, where it is, and its last progress line."""
    job_id = claim.claimed(output).get("slurm")
    known = {"state": "runs", "where": "", "progress": watch.last_progress(Path(job["log"]))}
    if not job_id:
        return {**job, **known}
    seen = listed.get(job_id, watch.Seen("unknown", "", ""))
    log = Path(claim.claimed(output).get("log", "/dev/null"))
    waits = seen.state == "PENDING"
    where = f"SLURM job {job_id}" + (f" ({seen.reason})" if waits else f" on {seen.node}")
    words = {"state": "waits" if waits else "runs", "where": where}
    return {**job, **known, **words, "progress": watch.last_progress(log)}
