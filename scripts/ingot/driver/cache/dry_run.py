"""What Snakemake would do with each job of some targets: asked of the real command, by a dry run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused

ANSWER = "INGOT_EXPLAIN"  # the file that a dry run writes its decisions to, as JSON
DETAILS = "INGOT_DETAILS"  # and with it the command of each job, and what its record says
WHOLE = "INGOT_WHOLE_WAY"  # a run takes the records of all that a target was made from, if it need not run


def dry_run(
    root: Path,
    targets: list[str],
    catalogue: str | None = None,
    *more: str,
    cwd: Path | None = None,
    **environment: str,
) -> list[dict]:
    """What Snakemake would do with each job of `targets`, as report.described says it.

    `more`: further words for it; `cwd` is the working folder, by default this one.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "jobs.json"
        done = subprocess.run(
            _command(root, targets, catalogue, "-n", "--quiet", "all", *more),
            cwd=cwd,
            env={**os.environ, **environment, ANSWER: str(answer)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            said = done.stdout + done.stderr  # a dry run's own words are on stdout
            lines = [line for line in said.splitlines() if not line.startswith("Using ")]
            wrong = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            first, *rest = wrong or lines[-3:] or ["Snakemake said nothing; run it with -n"]
            raise Refused(first, "\n".join(rest))
        return json.loads(answer.read_text())


def build(
    root: Path, targets: list[str], catalogue: str | None, cwd: Path, *more: str, **environment: str
) -> None:
    """By the real command, on this terminal; what fails there is said there."""
    command = _command(root, targets, catalogue, *more)
    if shown(command, cwd=cwd, env={**os.environ, **environment}, stdout=sys.stderr):
        raise Refused(f"{targets[0]}: not built; the lines above say why")


def shown(command: list[str], **options: Any) -> int:
    """The exit status of a command that says on this terminal what it does.

    Ctrl-C is its own, too: it ends its steps and says so, for which subprocess.run gives it 0.25 s.  A
    SIGINT that somebody sent to this process alone is passed on: a second one would end it at once.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not _at_terminal():
                process.send_signal(signal.SIGINT)
            try:
                process.wait()
            finally:  # a second one is for those that hear none
                process.kill()
            raise KeyboardInterrupt("as it said") from None


def _at_terminal() -> bool:
    """Does Ctrl-C reach this process from a terminal, and with it those that it started?"""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _command(root: Path, targets: list[str], catalogue: str | None, *more: str) -> list[str]:
    own = ["--configfile", catalogue] if catalogue else []
    snakemake = Path(sys.executable).parent / "snakemake"
    return [str(snakemake), "-s", str(root / "Snakefile"), *more, *own, "--", *targets]
