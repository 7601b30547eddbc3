"""Every cell of the demo that needs no GPU, built twice: here, and by another user in other surroundings.

    python bench/reproduce.py [--user nobody] [--targets ...] [--folder /tmp/reproduce]

The second build has its own clone, store and home, one core, another locale and time zone, and a long path;
it shares the toolchains, which their locks name.  Of each step's files it is said whether the bytes are the
same.  Needs root, to be another user; about half an hour on two cores.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.catalogue import schema, targets  # noqa: E402
from ingot.driver.catalogue.formats.rows import FORMATS, VARIES  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.store.records import Store  # noqa: E402

DEEP = "a-folder-of-a-long-name/" * 6
ODD = {"LC_ALL": "C", "LANG": "tr_TR.UTF-8", "TZ": "Pacific/Chatham", "COLUMNS": "40"}
MORE = ("demo.q4_k_m.gguf", "demo.bf16.gguf", "demo.bf16.irpa", "demo.q8_0.gguf", "demo.split")


def cells() -> list[str]:
    """Each format at each size, the model's own variant; and a few more types."""
    found = []
    for target in targets.legal_of("demo", schema.load(ROOT)):
        parts = targets.parsed(target, schema.load(ROOT))
        row = parts and FORMATS[parts.format]
        if (
            row
            and parts.variant is None
            and not row.gpus
            and row.name not in ("mlir", "config.json")
        ):
            found.append(target)
    return list(dict.fromkeys([*found, *(targets.FOLDER + name for name in MORE)]))


def build(command: list, folder: Path, environment: dict[str, str], wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    snakemake = [*command, ROOT / ".venv/bin/snakemake", "-s", "Snakefile", "--keep-going"]
    done = subprocess.run(
        [str(word) for word in (*snakemake, "--", *wanted)],
        cwd=folder, env={**environment, "INGOT_STORE": str(folder / "store")}, check=False,
    )  # fmt: skip
    print(f"{folder}: exit status {done.returncode}", flush=True)


def files(store: Path) -> dict[str, tuple[str, str]]:
    """Rule and digest of each output on record, by title."""
    return {
        f"{record.rule} {one['title']}": (record.rule, one["digest"])
        for record in Store(store).records()
        for one in record.outputs
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/reproduce"))
    parser.add_argument("--targets", nargs="*", help="default: every cell that needs no GPU")
    options = parser.parse_args()
    wanted = options.targets or cells()
    shutil.rmtree(options.folder, ignore_errors=True)
    envs = toolchains.cache()  # which that user must be able to read
    first, second = options.folder / "first", options.folder / DEEP / "second"
    for folder in (first, second):
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    shared = {"PATH": os.environ["PATH"], "INGOT_ENVS": str(envs)}
    build([], first, {**shared, "HOME": str(first)}, wanted)
    deep = options.folder / DEEP.split("/")[0]
    subprocess.run(["chown", "-R", options.user, deep], check=True)
    home = ["env", f"HOME={second}", f"XDG_CACHE_HOME={second}/cache"]
    other = ["runuser", "-u", options.user, "--", *home, "taskset", "-c", "0"]
    build(other, second, {**shared, **ODD, "HOME": str(second)}, wanted)
    ours, theirs = files(first / "store"), files(second / "store")
    both = sorted(set(ours) & set(theirs))
    same = [name for name in both if ours[name] == theirs[name]]
    for name in both:
        if name not in same:
            print(f"differs  {name}  {VARIES.get(ours[name][0], (0, ''))[1]}")
    for name in sorted(set(ours) ^ set(theirs)):
        print(f"only once  {name}")
    print(json.dumps({"cells": len(wanted), "files": len(both), "same": len(same)}))


if __name__ == "__main__":
    main()
