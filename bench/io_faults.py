"""Let every write-side call of a demo build fail once, and cut its power; then build again.

    .venv/bin/python bench/io_faults.py [--calls 100 | --each | --all] [--moments 40] [--seed 1] [--json]

Calls: open, write, fsync, rename, link, unlink below the working folder and the store, over all
processes of a build of demo.irpa, with ENOSPC, EIO, SIGKILL or half a write.  Power: an ext4 image on a
loop device, copied at moments of a build and of the minute after it, as the device had been given it;
each copy is mounted, under another boot's id, and built again.  Needs gcc; the power needs root.
After the plain re-run the artifacts must hold what an undisturbed build gives, and fsck find nothing.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ingot.base import digest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("artifacts/demo.gguf", "artifacts/demo.irpa", "artifacts/demo_tp2.irpa")
KINDS = ("enospc", "eio", "kill", "short")
PATIENCE = 300  # seconds that a build may take
IMAGE = 512 << 20  # bytes
AFTER = 40.0  # seconds after a build in which moments lie: data reach a disk within 35
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def build(folder: Path, house: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    command = [ROOT / ".venv/bin/snakemake", "-s", house / "Snakefile", "--cores", "2", "-q", "all"]
    return subprocess.run(
        [*map(str, command), "--", *TARGETS],
        cwd=folder,
        env={**os.environ, "INGOT_STORE": str(folder / "store"), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def contents(folder: Path) -> list[str]:
    """What the artifacts hold, by reading them: no memo is asked."""
    return [digest.read(folder / target) for target in TARGETS]


def verdict(folder: Path, wanted: list[str]) -> str:
    """`right`, or what was wrong after a plain re-run, a second one and fsck."""
    for number in ("re-run", "second re-run"):
        done = build(folder)
        if done.returncode:
            return f"{number} failed: {done.stderr.strip().splitlines()[-1:]}"
    try:
        if contents(folder) != wanted:
            return "WRONG BYTES"
    except OSError as error:
        return f"missing: {error}"
    fsck = subprocess.run(
        [ROOT / ".venv/bin/ingot", "store", "fsck", "--json"],
        env={**os.environ, "INGOT_STORE": str(folder / "store")},
        capture_output=True,
        text=True,
        check=False,
    )
    return "right" if fsck.returncode == 0 else f"fsck: {fsck.stdout[-300:]}"


def copied(house: Path) -> Path:
    """A copy of the pipeline whose steps see the variables of the faults, too."""
    ignored = shutil.ignore_patterns(".*", "artifacts", "logs", "bench", "docs", "__pycache__")
    shutil.copytree(ROOT, house, ignore=ignored)
    listed = house / "scripts/ingot/driver/catalogue/rules/environment.py"
    text, own = listed.read_text(), '"HOME", '
    if own not in text:
        sys.exit(f"{listed}: has no {own}; the faults would not reach a step")
    listed.write_text(text.replace(own, '"HOME", "LD_PRELOAD", "IO_FAULT_*", ', 1))
    return house


def calls(place: Path, wanted: list[str], choose: Callable[[int], list]) -> dict:
    """`choose` gives the (call, way) pairs to try, of so many calls."""
    shim = place / "io_faults.so"
    source = ROOT / "bench/io_faults.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)

    house = copied(place / "house")

    def faulty(folder: Path, at: int, kind: str) -> int:
        folder.mkdir()
        count = folder.with_name(f"{folder.name}.count")
        count.write_bytes(bytes(8))
        faults = {
            "IO_FAULT_COUNT": str(count), "IO_FAULT_AT": str(at),
            "IO_FAULT_KIND": kind, "IO_FAULT_BELOW": str(folder), "LD_PRELOAD": str(shim),
        }  # fmt: skip
        build(folder, house, **faults)
        return int.from_bytes(count.read_bytes(), "little")

    total = faulty(place / "count-all", -1, "eio")
    shutil.rmtree(place / "count-all")
    points = choose(total)
    print(f"{total} calls in a build, {len(points)} faults to try", file=sys.stderr, flush=True)

    def attempt(point: tuple[int, str]) -> str:
        at, kind = point
        folder = place / f"try-{at}-{kind}"
        faulty(folder, at, kind)
        found = verdict(folder, wanted)
        shutil.rmtree(folder)
        return found

    wrong = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, ((at, kind), found) in enumerate(
            zip(points, pool.map(attempt, points), strict=True), 1
        ):
            if found != "right":
                wrong.append(f"call {at}, {kind}: {found}")
                print(wrong[-1], file=sys.stderr, flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(points)} tried", file=sys.stderr, flush=True)
    return {"calls": total, "tried": len(points), "right": len(points) - len(wrong), "wrong": wrong}


def power(place: Path, wanted: list[str], chance: random.Random, moments: int) -> dict:
    """In a mount namespace of our own: see main."""
    image, disk = place / "disk.img", place / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE)
    run("mkfs.ext4", "-q", image)
    run("mount", "-o", "loop", image, disk)
    (disk / "work").mkdir()
    run("sync")
    start = time.monotonic()
    builder = subprocess.Popen([sys.executable, __file__, "--build-in", disk / "work"])
    # half of them while it builds, which takes some 10 s here; the rest until all is written
    when = sorted(
        [chance.uniform(0.5, 10) for _ in range(moments // 2)]
        + [chance.uniform(10, 10 + AFTER) for _ in range(moments - moments // 2)]
    )
    copies = []
    for number, moment in enumerate(when):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        copies.append(place / f"copy{number}.img")
        run("cp", "--sparse=always", image, copies[-1])
    builder.wait(PATIENCE)
    run("umount", disk)
    (place / "boot").write_text(f"{OTHER_BOOT}\n")
    run("mount", "--bind", place / "boot", "/proc/sys/kernel/random/boot_id")
    right, wrong = 0, []
    for moment, copy in zip(when, copies, strict=True):
        run("mount", "-o", "loop", copy, disk)
        found = verdict(disk / "work", wanted)
        run("umount", disk)
        copy.unlink()
        right += found == "right"
        if found != "right":
            wrong.append(f"power lost after {moment:.1f} s: {found}")
            print(wrong[-1], file=sys.stderr, flush=True)
    return {"tried": moments, "right": right, "wrong": wrong}


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100, help="that fail, of all; 0 for none")
    parser.add_argument("--each", action="store_true", help="each call, the ways in turn: an hour")
    parser.add_argument("--all", action="store_true", help="each call, in each way: hours")
    parser.add_argument("--moments", type=int, default=40, help="of power loss; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--build-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build_in:
        sys.exit(build(options.build_in).returncode)
    if options.moments and os.geteuid() == 0 and "IO_FAULTS_APART" not in os.environ:
        os.environ["IO_FAULTS_APART"] = "1"  # what is mounted here is nobody else's to see
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, *sys.argv[1:]])
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "undisturbed").mkdir()
        build(place / "undisturbed")
        wanted = contents(place / "undisturbed")
        found = {"seed": options.seed, "tried": 0, "right": 0}

        def choose(total: int) -> list[tuple[int, str]]:
            if options.each:
                return [(at, KINDS[(at + options.seed) % len(KINDS)]) for at in range(total)]
            points = [(at, kind) for at in range(total) for kind in KINDS]
            return points if options.all else chance.sample(points, min(options.calls, len(points)))

        if options.calls or options.each or options.all:
            found |= calls(place, wanted, choose)
        if options.moments and os.geteuid():
            print("power loss: not tried, it needs root to mount", file=sys.stderr)
        elif options.moments:
            found["power_loss"] = power(place, wanted, chance, options.moments)
    loss = found.get("power_loss", {"tried": 0, "right": 0})
    print(
        f"seed {options.seed}: {found['right']} of {found['tried']} failing calls ended right, "
        f"{loss['right']} of {loss['tried']} losses of power"
    )
    if options.json:
        print(json.dumps(found))
    sys.exit(found["right"] < found["tried"] or loss["right"] < loss["tried"])


if __name__ == "__main__":
    main()
