"""What showing a run costs: CPU of the board and of each step's record; a no-op beside an earlier commit.

    .venv/bin/python bench/board.py [--before COMMIT] [--json]

The board is drawn on a real pseudo-terminal, once per second, of 10 and of 600 jobs; each step writes a
record once per second.  Both are shares of one busy core.  With --before, no-ops of the two commits take
turns.  Limits: 1 % of a core, 1.05 of the no-op, 600 jobs as fast as 10.
"""

import argparse
import json
import os
import pty
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]

from ingot.base import record, steps  # noqa: E402
from ingot.base.progress import Progress  # noqa: E402
from ingot.driver.catalogue.job import Job, Output  # noqa: E402
from ingot.driver.show.live import Live  # noqa: E402
from ingot.driver.show.status import Status  # noqa: E402

TICKS, AT_ONCE, TURNS = 50, 10, 7
SHARE, NO_OP = 0.01, 1.05  # limits
TARGET = "artifacts/demo.irpa"


def cpu(what, times: int) -> float:
    """CPU seconds of one call."""
    what()
    begun = time.thread_time()
    for _ in range(times):
        what()
    return (time.thread_time() - begun) / times


def drain(terminal: int) -> None:
    """Read what nobody looks at."""
    while os.read(terminal, 65536):
        pass


def board(jobs: int) -> float:
    """CPU seconds per second of a board of so many jobs, all running, of which ten record."""
    of, at = {"model": "m"}, "artifacts/m.hf"
    made = [
        Job("fetch_file", outputs=(Output("", f"{at}/{n}"),), wildcards=of) for n in range(jobs)
    ]
    status = Status(run="bench", targets=["artifacts/m.gguf"])
    plan = {"seconds": 60.0, "memory": 1, "disk": 1, "disk_at": [], "whole": True}
    status.expect(made, plan)
    place = steps.NOTES / status.run
    place.mkdir(parents=True, exist_ok=True)
    for job in made:
        status.started(job, "log", None)
    for n, job in enumerate(made[:AT_ONCE]):
        found = {"words": job.writes, "memory": 1, "peak": 1, "total": 10**12, "rate": 1e8}
        (place / f"{n}.json").write_text(json.dumps(found))
    terminal, ours = pty.openpty()
    threading.Thread(target=drain, args=(terminal,), daemon=True).start()
    screen = Live(status, ours)

    def tick() -> None:
        status.since -= 1  # a second has passed
        known = steps.read(list(status.running))
        status.sample(sum(one.memory for one in known.values()))
        screen.tick(known)

    return cpu(tick, TICKS)


def no_op(folder: Path) -> float:
    """Wall seconds of a run that has nothing to do."""
    begun = time.monotonic()
    command = [ROOT / ".venv/bin/snakemake", "--cores", "2", "--", TARGET]
    subprocess.run(
        command, cwd=folder, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - begun


def beside(commit: str, scratch: Path) -> dict[str, float]:
    """No-ops of the two commits, in turns: the medians, and their ratio."""
    folders = {"before": scratch / "before", "now": scratch / "now"}
    for name, folder in folders.items():
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
        if name == "before":
            subprocess.run(["git", "-C", folder, "checkout", "-q", commit], check=True)
        os.environ["INGOT_STORE"] = str(scratch / f"store-{name}")
        no_op(folder)
    found: dict[str, list[float]] = {name: [] for name in folders}
    for _ in range(TURNS):
        for name, folder in folders.items():
            os.environ["INGOT_STORE"] = str(scratch / f"store-{name}")
            found[name].append(no_op(folder))
    before, now = (statistics.median(found[name]) for name in folders)
    return {"before": before, "now": now, "ratio": now / before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="a commit to compare a no-op with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ |= {"INGOT_NOTES": f"{scratch}/.ingot/notes", "INGOT_RUN": "step"}
        progress = Progress("m.gguf", 10**12)
        progress.add(1)
        Path(scratch, ".ingot/notes/steps/step").mkdir(parents=True)
        written = cpu(lambda: record._write(record._place(), record._state()), TICKS)
        found = {"board_10": board(10), "board_600": board(600), "record": written}
        for name in ("INGOT_NOTES", "INGOT_RUN"):
            del os.environ[name]
        if options.before:
            found["no_op"] = beside(options.before, Path(scratch))
    found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if options.json:
        print(json.dumps(found))
    else:
        told(found)
    most = max(found["board_10"], found["board_600"], written)
    if most > SHARE or found.get("no_op", {"ratio": 1.0})["ratio"] > NO_OP:
        sys.exit("beyond a limit")


def told(found: dict) -> None:
    print(f"board, per second: {found['board_10']:.2%} of a core for 10 jobs, "
          f"{found['board_600']:.2%} for 600 (limit 1 %)")  # fmt: skip
    print(f"a step's record, per second: {found['record']:.3%} of a core")
    if "no_op" in found:
        words = "no-op: {before:.2f} s before, {now:.2f} s now: {ratio:.3f} (limit 1.05)"
        print(words.format(**found["no_op"]))


if __name__ == "__main__":
    main()
