"""What a store of many records costs: a hit, a dry run, du, gc, one record more.

    .venv/bin/python bench/many_records.py [--records 20000] [--json]

Fills a store with records of tiny artifacts, then runs the real commands on it, and on one that holds
the demo's alone.  Prints seconds of CPU time, and the ratio of the two.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]

from ingot.store import blobs  # noqa: E402
from ingot.store.records import Action, Store  # noqa: E402

TARGET = "artifacts/demo.irpa"
RULES = 20


def fill(count: int) -> None:
    """Records as builds leave them, but for the waits for the disk."""
    blobs.sync = lambda path: None
    store = Store()
    for number in range(count):
        name = store.put_bytes(f"artifact {number}".encode())
        output = {"kind": "file", "digest": name, "size": 9, "title": f"m{number % 999}.irpa"}
        key = hashlib.sha256(str(number).encode()).hexdigest()
        rule = f"rule{number % RULES}" if number % 4 else "gguf_to_irpa"
        fields = {
            "version": 1, "rule": rule, "command": "", "outputs": [], "inputs": {"gguf": name},
            "params": {}, "wildcards": {}, "code": {}, "lock": {},
        }  # fmt: skip
        store.record(Action(rule, key, fields, [output], {"seconds": 1.0}, {}))
    store.index()


def measured(folder: Path, *words: str) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of a command there."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False,
        timeout=3600,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{words}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - start


def commands(folder: Path) -> dict[str, tuple[float, float]]:
    snakemake = (
        ROOT / ".venv/bin/snakemake",
        "-s",
        ROOT / "Snakefile",
        "--cores",
        "2",
        "-q",
        "all",
    )
    ingot = ROOT / ".venv/bin/ingot"
    found = {
        "build of one more record": measured(folder, *snakemake, "--", TARGET),
        "no-op": measured(folder, *snakemake, "--", TARGET),
    }
    (folder / TARGET).unlink()
    return found | {
        "hit": measured(folder, *snakemake, "--", TARGET),
        "dry run of what is new": measured(
            folder, *snakemake, "-n", "--", "artifacts/demo.bf16.irpa"
        ),
        "du": measured(folder, ingot, "store", "du"),
        "gc, nothing to drop": measured(folder, ingot, "store", "gc", "--dry-run"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        for name, count in (("small", 0), ("large", options.records)):
            folder = Path(place, name)
            folder.mkdir()
            os.environ["INGOT_STORE"] = str(folder / "store")
            Store().prepare()
            fill(count)
            rows[name] = commands(folder)
    print(f"{'CPU seconds':26}{'alone':>8}{options.records:>10,}{'ratio':>8}{'wall':>9}")
    for what, (alone, _) in rows["small"].items():
        many, wall = rows["large"][what]
        print(f"{what:26}{alone:>8.2f}{many:>10.2f}{many / alone:>8.2f}{wall:>8.2f}s")
    if options.json:
        print(json.dumps({"records": options.records, **rows}))


if __name__ == "__main__":
    main()
