"""Look at a SLURM site: whether it can do what a run will ask of it; each fault in one line.

A job of a minute asks a node of each partition that the targets' jobs would use.  A run does the same
by itself when it first uses a site.
"""

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.refused import Refused, printable
from ingot.driver.cache.dry_run import dry_run
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.snakemake.health import doctor


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="*", help="what would be built (default: the demo)")
    parser.add_argument("--profile", default="slurm", help="of Snakemake (default: %(default)s)")
    parser.add_argument(
        "--wait", type=float, default=90, help="seconds for a busy partition (default: %(default)s)"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "faults.json"
        profile = ("--profile", options.profile)
        told = {doctor.ANSWER: str(answer), doctor.WAIT: str(options.wait)}
        dry_run(root, options.target, options.configfile, *profile, **told)
        if not answer.exists():
            raise Refused(f"--profile {options.profile}: not one of SLURM, expected profiles/slurm")
        found = json.loads(answer.read_text())
    for line in (*found["faults"], *found["busy"]):
        print(printable(line), file=sys.stderr)
    sound = "not all of the site was looked at" if found["busy"] else "the site is sound"
    count = len(found["faults"])
    print(f"{count} fault{'s'[: count != 1]}" if found["faults"] else sound)
    return bool(found["faults"])
