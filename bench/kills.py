"""Kill a cold demo build at random points; each is followed by a plain re-run.

    .venv/bin/python bench/kills.py [--target artifacts/demo_tp1.shortfin] [--times 100] [--seed 1] [--json]

The victim is, in turn, Snakemake, a step, or all of them at once.  After the re-run all artifacts
must hold what an undisturbed build gives, and `ingot store fsck` must find nothing.  Prints how many
did, and the share of work that had to be repeated.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ingot.base import digest

ROOT = Path(__file__).resolve().parents[1]
VICTIMS = ("snakemake", "step", "all")
PATIENCE = 600  # seconds that a build may take


def command(folder: Path, target: str) -> dict:
    return {
        "args": [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", "-q", "all", "--", target],
        "cwd": folder,
        "env": {**os.environ, "INGOT_STORE": str(folder / "store")},
        "stderr": subprocess.PIPE,
        "start_new_session": True,
    }


def build(folder: Path, target: str) -> float:
    started = time.monotonic()
    done = subprocess.run(**command(folder, target), timeout=PATIENCE, check=False)
    if done.returncode:
        sys.exit(f"{folder}: the build stopped:\n{done.stderr.decode()[-2000:]}")
    return time.monotonic() - started


def killed(folder: Path, target: str, after: float, victim: str) -> bool:
    """Start a build and kill `victim` after some seconds; False when it was done before."""
    process = subprocess.Popen(**command(folder, target))
    try:
        process.communicate(timeout=after)
        return False
    except subprocess.TimeoutExpired:
        pass
    steps = [pid for pid in family(process.pid) if pid != process.pid]
    doomed = {"step": steps, "all": [process.pid, *steps]}.get(victim) or [process.pid]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)  # a step's death is Snakemake's to handle
    return True


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended
                found += [int(word) for word in children.read_text().split()]
    return found


def state(folder: Path) -> dict[str, str]:
    """Of all that was built: {name: its bytes}."""
    return {path.name: digest.of(path.resolve()) for path in folder.glob("artifacts/[!.]*")}


def sound(folder: Path) -> bool:
    done = subprocess.run(
        [ROOT / ".venv/bin/ingot", "store", "fsck", "--json"],
        env={**os.environ, "INGOT_STORE": str(folder / "store")},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="artifacts/demo_tp1.shortfin")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        os.environ["INGOT_STORE"] = f"{place}/bench"
        cold = Path(place, "cold")
        cold.mkdir()
        seconds = build(cold, options.target)
        wanted = state(cold)
        print(f"cold build: {seconds:.1f} s", file=sys.stderr)
        right, clean, repeated, hits = 0, 0, 0.0, 0
        for number in range(options.times):
            folder = Path(place, "try")
            folder.mkdir()
            after, victim = chance.uniform(0, seconds), VICTIMS[number % len(VICTIMS)]
            hit = killed(folder, options.target, after, victim)
            again = build(folder, options.target)
            fine, whole = state(folder) == wanted, sound(folder)
            right, clean, hits = right + fine, clean + whole, hits + hit
            repeated += max(0.0, after + again - seconds) if hit else 0.0
            print(
                f"{number + 1:4} {victim:10} killed at {after:5.1f} s, re-run {again:5.1f} s: "
                f"{'right' if fine else 'WRONG'}, fsck {'clean' if whole else 'NOT CLEAN'}",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(folder)
    share = repeated / (hits * seconds) if hits else 0.0
    found = {
        "kills": hits, "right": right, "clean": clean, "of": options.times,
        "cold_seconds": round(seconds, 1), "repeated_share": round(share, 3),
    }  # fmt: skip
    print(
        f"{hits} kills in {options.times} builds: {right} ended right, {clean} with a clean fsck; "
        f"{share:.0%} of a cold build was repeated on average, start-ups included"
    )
    if options.json:
        print(json.dumps(found))
    if right < options.times or clean < options.times:
        sys.exit(1)


if __name__ == "__main__":
    main()
