"""What the runs of this folder and of its store are doing: the board of each, from another terminal."""

import contextlib
import json
import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ingot.base import claim, steps
from ingot.base.refused import Refused, drawn_on, harmless
from ingot.driver.catalogue.rules import environment
from ingot.driver.forecast.schedule import duration, size
from ingot.driver.show import status
from ingot.driver.show.shown import jobs
from ingot.driver.snakemake.cluster import watch
from ingot.store import leases
from ingot.store.records import Store

EACH = 1.0  # seconds between two looks
CLEAR = "\033[H\033[J"  # of a terminal
HERE = Path()
HEAD = 3  # lines above a board


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")
    parser.add_argument("--follow", action="store_true", help="until the run has ended")


def run(root: Path, options: Namespace) -> int:
    environment.prepare()
    last = None
    while True:
        found = dict(runs())
        if not found and last is not None:
            print("no run is alive")
            return 0
        if not found:
            print("no run yet in this folder", file=sys.stderr)
            return 1
        alive = any(status.alive(folder) for folder in found)
        text = shown(found, options.json)
        if options.follow and sys.stdout.isatty():
            print(f"{CLEAR}{text}", flush=True, file=drawn_on(sys.stdout))
        elif text != last:
            print(text, flush=True, file=drawn_on(sys.stdout))
        if not (options.follow and alive):
            return 0
        last = text
        try:
            time.sleep(EACH)
        except KeyboardInterrupt:
            return 0


def runs() -> Iterator[tuple[Path, status.Status]]:
    """The last run of this folder, and those alive in others that use the same store."""
    if found := status.read():
        yield HERE, found
    folders: set[str] = set()
    with contextlib.suppress(Refused, OSError):
        folders = {lease["folder"] for lease in leases.alive(Store())} - {str(Path.cwd())}
    for folder in map(Path, sorted(folders)):
        if status.alive(folder) and (other := status.read(folder)):
            yield folder, other


def shown(found: dict[Path, status.Status], as_json: bool) -> str:
    if as_json:
        whole = [described(folder, one) for folder, one in found.items()]
        first = whole[0] if HERE in found else {"alive": False}
        others = whole[1:] if HERE in found else whole
        return json.dumps(first | ({"others": others} if others else {}))
    if sys.stdout.isatty():
        height = shutil.get_terminal_size().lines // len(found) - HEAD
        return "\n".join(drawn(folder, one, height) for folder, one in found.items()).rstrip()
    return "\n".join(line for folder, one in found.items() for line in lines(folder, one))


def drawn(folder: Path, found: status.Status, height: int) -> str:
    """As the run's own terminal shows it; of one that has ended, a line."""
    if not status.alive(folder):
        return "\n".join(lines(folder, found))
    from rich.console import Console

    from ingot.driver.show.drawing import board

    width = shutil.get_terminal_size().columns
    console = Console(force_terminal=True, highlight=False, width=width - 1, height=height)
    with console.capture() as text:
        console.print(header(folder, found, True, ends=False), end="\n")  # the board says it
        console.print(board(found, steps.read(found.running, folder), width - 1, height, folder))
    return text.get()


def lines(folder: Path, found: status.Status) -> Iterator[str]:
    one = described(folder, found)
    yield header(folder, found, one["alive"])
    for output, job in one["running"].items():
        expected = f" of about {duration(job['expected'])}" if job["expected"] else ""
        where = f"  {job['where']}" if job["where"] else ""
        took = duration(time.time() - job["since"])
        yield f"{job['state']:8} {output}  {took}{expected}{where}"
        if job["progress"]:
            yield f"         {harmless(job['progress'])}"
    yield from (f"failed   {output}  log: {log}" for output, log in found.failed.items())


def header(folder: Path, found: status.Status, alive: bool, ends: bool = True) -> str:
    since = time.strftime("%H:%M", time.localtime(found.since))
    done = jobs(found.done)
    counts = f"{done} done, {len(found.running)} running, {found.left} left in all"
    if not alive and (found.running or found.stopped_by):
        built = ", ".join(found.running)
        how = f"was stopped by {found.stopped_by}" if found.stopped_by else "ended"
        while_it = f" while it built {built}" if built else ""
        return (
            f"no run is alive; the last, of {since} (pid {found.pid} on {found.host}), {how}{while_it}; "
            f"{done} {'was' if found.done == 1 else 'were'} done, and the same command resumes"
        )
    if not alive:
        failed = f", {len(found.failed)} failed" if found.failed else ""
        return f"no run is alive; the last, of {since}, ended with {done} done{failed}"
    at = time.strftime("%H:%M", time.localtime(max(found.ends or 0, time.time())))
    end = f"; ends about {at}" if found.ends and ends else ""
    where = "" if folder == HERE else f" in {folder}"
    return f"run of {since} (pid {found.pid} on {found.host}){where}: {counts}{end}"


def described(folder: Path, found: status.Status) -> dict:
    """The run as JSON has it: each job with its state, where it is, and how far."""
    alive = status.alive(folder)
    running = found.running if alive else {}
    known = steps.read(running, folder)
    slurms = folder == HERE and any(claim.claimed(output).get("slurm") for output in running)
    listed = watch.seen() if slurms else None
    jobs = {
        output: of_job(output, job, known.get(output), listed or {}, folder)
        for output, job in running.items()
    }
    return {**asdict(found), "alive": alive, "folder": str(folder.absolute()), "running": jobs}


def of_job(output: str, job: dict, step: steps.Step | None, listed: dict, folder: Path) -> dict:
    """The job with its state, where it is, how far, and what memory it takes."""
    found = {"state": "runs", "where": "", "progress": "", "memory": step.memory if step else None}
    if step and step.total:
        count = f"{step.done} of {step.total} {step.unit}"
        if not step.unit:
            count = f"{size(step.done)} of {size(step.total)}, {size(step.rate)}/s"
        found["progress"] = f"{100 * step.done // step.total} %  {count}"
    job_id = claim.claimed(output).get("slurm") if folder == HERE else None
    if not job_id:
        return {**job, **found}
    seen = listed.get(job_id, watch.Seen("unknown", "", ""))
    waits = seen.state == "PENDING"
    where = f"SLURM job {job_id}" + (f" ({seen.reason})" if waits else f" on {seen.node}")
    if not found["progress"]:
        found["progress"] = watch.last_progress(Path(claim.claimed(output).get("log", os.devnull)))
    return {**job, **found, "state": "waits" if waits else "runs", "where": where}
