"""Why a target would be built: the fields in which its key differs from the nearest record's."""

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver import report
from ingot.driver.commands.targets import add_catalogue
from ingot.refused import Refused


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="+", help="such as artifacts/M_tp1.vmfb")
    parser.add_argument("--json", action="store_true", help="machine-readable: every job as JSON")
    add_catalogue(parser)


def dry_run(
    root: Path, targets: list[str], catalogue: str | None = None, *more: str, **environment: str
) -> list[dict]:
    """What Snakemake would do with each job of `targets`, as report.described says it.

    `more`: further words for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "jobs.json"
        snakemake = Path(sys.executable).parent / "snakemake"
        own = ["--configfile", catalogue] if catalogue else []
        done = subprocess.run(
            [
                snakemake,
                "-s",
                root / "Snakefile",
                "-n",
                "--quiet",
                "all",
                *own,
                *more,
                "--",
                *targets,
            ],
            env={**os.environ, **environment, report.ANSWER: str(answer)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            lines = [line for line in done.stderr.splitlines() if not line.startswith("Using ")]
            lines = [line.removeprefix("error: ") for line in lines]
            first, *rest = lines[-3:] or ["Snakemake said nothing; run it with -n"]
            raise Refused(first, "\n".join(rest))
        return json.loads(answer.read_text())


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
        elif job["outputs"] and set(job["outputs"]) & set(options.target):
            print(f"{name}: {job['why']}")
