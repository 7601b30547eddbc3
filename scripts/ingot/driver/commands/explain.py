"""Why a target would be built: the fields in which its key differs from the nearest record's."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.cache.dry_run import dry_run
from ingot.driver.commands.targets import add_catalogue


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="+", help="such as artifacts/M_tp1.vmfb")
    parser.add_argument("--json", action="store_true", help="machine-readable: every job as JSON")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    jobs = dry_run(root, options.target, options.configfile)
    if options.json:
        print(json.dumps(jobs))
        return
    for job in sorted(jobs, key=lambda job: ("none", "restore", "run").index(job["action"])):
        name = ", ".join(job["outputs"])
        if job["action"] == "run":
            near = job.get("nearest")
            beside = f" (nearest record: {', '.join(near['outputs'])})" if near else ""
            reasons = job.get("differences") or [job["why"]]
            print(f"{name}: would be built{beside if job.get('differences') else ''}")
            for line in reasons:
                print(f"    {line}")
        elif job["action"] == "restore":
            print(f"{', '.join(job['files'])}: would be restored from the store")
        elif job["outputs"] and set(job["outputs"]) & {
            target.rstrip("/") for target in options.target
        }:
            print(f"{name}: {job['why']}")
