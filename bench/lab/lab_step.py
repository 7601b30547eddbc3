"""Writes down all that it was told: what bench/wrong_hits.py changes shows in its output."""

import argparse
import os
import sys
from pathlib import Path

from ingot.lab_module import VERSION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("out", "pack", "tree", "lock"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--words", nargs="*", default=[])
    parser.add_argument("--order", default="")
    parser.add_argument("--loud", default="")
    options = parser.parse_args()
    lines = [f"version {VERSION}", f"mode {os.environ.get('LAB_MODE')}", f"words {options.words}"]
    told = [word for word in sys.argv if word.startswith(("--order", "--loud"))]
    lines += [f"flags {told}", options.lock.read_text() if options.lock else ""]
    lines += [path.read_text() for path in options.files]
    for path in sorted(options.tree.rglob("*")) if options.tree else ():
        kind = path.readlink() if path.is_symlink() else os.access(path, os.X_OK)
        text = path.read_text() if path.is_file() else ""
        lines.append(f"{path.relative_to(options.tree)} {kind} {text}")
    if options.out:
        options.out.write_text("\n".join(lines))
    if options.pack:
        options.pack.mkdir()
        (options.pack / "data").write_text("\n".join(lines))
        (options.pack / "run").write_text("#!/bin/sh\n")
        (options.pack / "run").chmod(0o755)


if __name__ == "__main__":
    main()
