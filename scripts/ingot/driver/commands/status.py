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


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")


def run(root: Path, options: Namespace) -> int:
    environment.prepare()
    found, alive = status.read(), status.alive()
    if found is None:
        print("no run yet in this folder", file=sys.stderr)
        return 1
    slurms = any(claim.claimed(output).get("slurm") for output in found.running)
    listed = watch.seen() if alive and slurms else None
    running = found.running.items() if alive else ()
    jobs = {output: described(output, job, listed or {}) for output, job in running}
    if options.json:
        print(json.dumps({**asdict(found), "alive": alive, "running": jobs}))
        return 0
    print(header(found, alive))
    for output, job in jobs.items():
        expected = f" of about {duration(job['expected'])}" if job["expected"] else ""
        where = f"  {job['where']}" if job["where"] else ""
        print(f"{job['state']:8} {output}  {duration(time.time() - job['since'])}{expected}{where}")
        if job["progress"]:
            print(f"         {job['progress']}")
    for output, log in found.failed.items():
        print(f"failed   {output}  log: {log}")
    return 0


def header(found: status.Status, alive: bool) -> str:
    since = time.strftime("%H:%M", time.localtime(found.since))
    counts = f"{found.done} jobs done, {len(found.running)} running, {found.left} in all left"
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
