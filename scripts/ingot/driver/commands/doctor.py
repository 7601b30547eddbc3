"""Look at a SLURM site: whether it can do what a run will ask of it; each fault in one line.

A job of a minute asks a node of each partition that the targets' jobs would use.  A run does the same
by itself when it first uses a site.
"""

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.commands.explain import dry_run
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.health import doctor
from ingot.refused import printable


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="*", help="what would be built (default: the demo)")
    parser.add_argument("--profile", default="slurm", help="of Snakemake (default: %(default)s)")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "faults.json"
        profile = ("--profile", options.profile)
        dry_run(root, options.target, options.configfile, *profile, **{doctor.ANSWER: str(answer)})
        found = json.loads(answer.read_text())
    for line in found:
        print(printable(line), file=sys.stderr)
    print(f"{len(found)} faults" if found else "the site is sound")
    return bool(found)
