"""Damage every file that a reader of ours takes, for some minutes each.

    .venv/bin/python bench/fuzz.py [--seconds 600] [--seed 1] [--reader NAME ...] [--json]

A reader may refuse a file in one line, or take it where nothing is wrong with what it took.  Ends with
status 1 on a foreign exception, a case above 5 s, a wrong acceptance, or above 500 MB of memory.
"""

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

import fuzz  # noqa: E402

LIMIT = 500  # MB of resident memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="per reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", nargs="+", choices=fuzz.READERS, default=list(fuzz.READERS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.reader:
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz.run(
                fuzz.READERS[name], Path(folder), options.seed, sys.maxsize, options.seconds
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        rows.append(
            {
                "reader": name, "cases": found.counts.total(), **found.counts,
                "bad": found.bad[:20], "slowest_s": round(found.slowest, 2), "peak_mb": round(peak),
            }
        )  # fmt: skip
        if not options.json:
            counts = ", ".join(f"{count} {word}" for word, count in sorted(found.counts.items()))
            print(f"{name:20} {counts}; slowest {found.slowest:.2f} s, peak {peak:.0f} MB so far")
            print("".join(f"    {line}\n" for line in found.bad[:20]), end="", flush=True)
    if options.json:
        print(json.dumps(rows))
    sys.exit(any(row["bad"] or row["peak_mb"] > LIMIT for row in rows))


if __name__ == "__main__":
    main()
