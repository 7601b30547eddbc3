"""What the store costs and saves: a fresh clone, 8 GB restored, 450 targets, bytes moved.

    .venv/bin/python bench/store.py [clone] [restore] [noop] [bytes] [--json]

Each figure stands beside its limit and beside plain Snakemake (the same rules without the store) in
the same run; DVC beside the 450 targets.  Wall times are the median of five.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts"), str(ROOT / "bench")]
import yaml  # noqa: E402
from convert import make_checkpoint  # noqa: E402
from wrong_hits import DUMP, plain  # noqa: E402

from ingot.driver.toolchains import toolchains  # noqa: E402

PARTS = ("Snakefile", "models.yaml", "models.schema.json", "rules", "scripts", "envs", "profiles")
VMFB = "artifacts/demo_tp1.vmfb"
KINDS = (".f32.gguf", ".f16.gguf", ".bf16.gguf", ".q8_0.gguf", ".f32.irpa", ".f16.irpa",
         ".bf16.irpa", "_tp1.mlir", "_tp1.vmfb")  # fmt: skip
TWINS = 50  # models
LARGE = ("artifacts/large.f32.gguf", "artifacts/large.f16.gguf", "artifacts/large.bf16.gguf",
         "artifacts/large.q8_0.gguf", "artifacts/large.f16.irpa")  # fmt: skip
REPEATS = 5
COUNTED = """
import subprocess, sys
done = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL)
found = dict(line.split(": ") for line in open("/proc/self/io"))
print(int(found["rchar"]) + int(found["wchar"]))
sys.exit(done.returncode)
"""  # the kernel adds a child's bytes to its parent's when it is waited for


class Project:
    """A clone of the pipeline, with its own catalogue beside the repository's."""

    def __init__(self, folder: Path, store: Path, hooked: bool = True, models: dict | None = None):
        self.folder, self.store = folder, store
        folder.mkdir(parents=True)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        shutil.copytree(ROOT / "models/demo", folder / "models/demo")
        (folder / "mine.yaml").write_text(yaml.safe_dump({"models": models or {}}))
        if not hooked:
            plain(folder)

    def command(self, *words, targets=()):
        return [str(ROOT / ".venv/bin/snakemake"), "-c2", "-q", "rules", "host", "progress",
                "--configfile", "mine.yaml", *words, "--", *targets]  # fmt: skip

    def run(self, *words, targets, before=()) -> tuple[float, str]:
        """Seconds, and what it said; stops the benchmark when it fails."""
        started = time.perf_counter()
        done = subprocess.run(
            [*before, *self.command(*words, targets=targets)],
            cwd=self.folder,
            env={**os.environ, "INGOT_STORE": str(self.store)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            sys.exit(f"{self.folder}: {(done.stdout + done.stderr)[-3000:]}")
        return seconds, done.stdout + done.stderr

    def median(self, *words, targets, between=lambda: None) -> float:
        found = []
        for _ in range(REPEATS):
            between()
            found.append(self.run(*words, targets=targets)[0])
        return statistics.median(found)


def clone(place: Path) -> dict:
    """A fresh clone and a filled store: only the vmfb is placed."""
    store = place / "store"
    Project(place / "first", store).run(targets=[VMFB])
    peer = Project(place / "plain", place / "memo", hooked=False)
    peer.run(targets=[VMFB])
    noop = peer.median(targets=[VMFB])
    found = []
    for number in range(REPEATS):
        fresh = Project(place / f"fresh{number}", store)
        seconds, said = fresh.run(targets=[VMFB])
        found.append(seconds)
        placed = [path.name for path in (fresh.folder / "artifacts").iterdir()]
        if placed != ["demo_tp1.vmfb"] or "Nothing to be done" not in said:
            sys.exit(f"{fresh.folder}: placed {placed}, expected the vmfb alone\n{said}")
    return row("fresh clone, filled store, seconds", statistics.median(found), noop, noop + 0.5)


def large(place: Path) -> dict:
    make_checkpoint(place / "checkpoint", 13)
    return {"large": {"path": str(place / "checkpoint"), "name": "Large", "pre_tokenizer": "llama-bpe",
                      "architecture": "LlamaForCausalLM"}}  # fmt: skip


def restore(place: Path) -> dict:
    """8 GB of artifacts deleted and asked for again; then 4 GB of inputs touched."""
    models = large(place)
    ours = Project(place / "ours", place / "store", models=models)
    ours.run(targets=LARGE)
    size = sum((ours.folder / target).stat().st_size for target in LARGE)
    peer = Project(place / "plain", place / "memo", hooked=False, models=models)
    shutil.copytree(ours.folder / "artifacts", peer.folder / "artifacts", symlinks=True)
    shutil.copytree(ours.folder / "logs", peer.folder / "logs")
    peer.run("--touch", targets=LARGE)
    noop = peer.median(targets=LARGE)
    seconds = ours.median(targets=LARGE, between=lambda: shutil.rmtree(ours.folder / "artifacts"))
    found = row(f"{size / 1e9:.1f} GB restored, seconds", seconds, noop, noop + 0.5)

    inputs = [*(place / "checkpoint").iterdir(), ours.folder / LARGE[0]]
    touched = sum(path.stat().st_size for path in inputs)
    for path in inputs:
        os.utime(path)
    counted, said = bytes_of(ours, LARGE)
    base, _ = bytes_of(ours, LARGE)
    if "Nothing to be done" not in said and "run      " in said:
        sys.exit(f"after a touch: {said}")
    more = row(f"{touched / 1e9:.1f} GB touched: GB read beyond a no-op",
               (counted - base) / 1e9, touched / 1e9, touched / 1e9 * 1.01)  # fmt: skip
    return {**found, "touch": more}


def bytes_of(project: Project, targets) -> tuple[int, str]:
    """Bytes that Snakemake and all its children read and wrote, by the kernel's count."""
    _, said = project.run(targets=targets, before=[sys.executable, "-c", COUNTED])
    return int(said.strip().split("\n")[-1].split()[-1]), said


def moved(place: Path) -> dict:
    """Bytes read and written by a cold path: to gguf to irpa build."""
    ours = Project(place / "ours", place / "store", models=large(place))
    counted, _ = bytes_of(ours, ["artifacts/large.irpa"])
    sizes = [sum(p.stat().st_size for p in (place / "checkpoint").iterdir())]
    sizes += [(ours.folder / f"artifacts/large.{kind}").stat().st_size for kind in ("gguf", "irpa")]
    needed = sizes[0] + 2 * sizes[1] + sizes[2]
    return row(
        "cold path: to gguf to irpa, GB moved", counted / 1e9, needed / 1e9, needed / 1e9 * 1.05
    )


def noop(place: Path) -> dict:
    """450 targets that all stand: Ingot, plain Snakemake, DVC."""
    twins = [f"twin{number}" for number in range(TWINS)]
    demo = yaml.safe_load((ROOT / "models.yaml").read_text())["models"]["demo"]
    models = {name: demo for name in twins}
    targets = [f"artifacts/{name}{kind}" for name in twins for kind in KINDS]
    ours = Project(place / "ours", place / "store", models=models)
    ours.run(targets=targets[: len(KINDS)])
    seconds, _ = ours.run(targets=targets)
    print(f"{len(targets)} targets restored in {seconds:.2f} s", file=sys.stderr)
    peer = Project(place / "plain", place / "memo", hooked=False, models=models)
    shutil.copytree(ours.folder / "artifacts", peer.folder / "artifacts", symlinks=True)
    shutil.copytree(ours.folder / "logs", peer.folder / "logs")
    peer.run("--touch", targets=targets)
    pairs = []
    for _ in range(REPEATS):  # in turn, so that a busy moment meets both
        pairs.append((ours.run(targets=targets)[0], peer.run(targets=targets)[0]))
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    found = row(f"no-op over {len(targets)} targets, seconds", mine, theirs, theirs * 1.15)
    return {**found, "dvc_seconds": dvc(place, ours, models, targets)}


def dvc(place: Path, ours: Project, models: dict, targets: list[str]) -> float:
    """The same no-op by `dvc repro`, of a stage for each job."""
    program = toolchains.build(ROOT, "dvc") / "bin/dvc"
    peer = Project(place / "dvc", place / "memo", hooked=False, models=models)
    with (peer.folder / "rules/common.smk").open("a") as file:
        file.write(DUMP)
    _, told = peer.run("-n", targets=targets)
    line = next(line for line in told.splitlines() if line.startswith("STAGES"))
    stages = {
        stage["outs"][0].replace("/", "-").replace(".", "-"): {
            "cmd": "false", "deps": sorted(set(stage["deps"])), "outs": stage["outs"]}
        for stage in json.loads(line.removeprefix("STAGES"))
    }  # fmt: skip
    (peer.folder / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    (peer.folder / "artifacts").mkdir()
    for out in (out for stage in stages.values() for out in stage["outs"]):
        model = out.partition("/")[2].replace("_", ".").partition(".")[0]
        shutil.copy(ours.folder / out.replace(model, "twin0"), peer.folder / out)

    def call(*words):
        subprocess.run(
            [program, *words], cwd=peer.folder, check=True,
            env={**os.environ, "DVC_NO_ANALYTICS": "1"}, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    call("init", "--no-scm", "-q")
    call("config", "cache.type", "hardlink")
    call("commit", "-f", "-q")
    found = []
    for _ in range(3):
        started = time.perf_counter()
        call("repro", "-q")
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def row(what: str, ours: float, peer: float, limit: float) -> dict:
    return {"what": what, "ours": round(ours, 3), "beside": round(peer, 3), "limit": round(limit, 3),
            "within": ours <= limit}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=[], help="clone, restore, noop, bytes; else all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = {"clone": clone, "restore": restore, "noop": noop, "bytes": moved}
    if unknown := set(options.what) - set(parts):
        sys.exit(f"{unknown.pop()}: not a part, expected one of {', '.join(parts)}")
    results = {}
    print(f"{'':52}{'ours':>9}{'beside':>9}{'limit':>9}")
    for name in options.what or parts:
        with tempfile.TemporaryDirectory() as place:
            found = results[name] = parts[name](Path(place))
        for line in (found, *filter(None, [found.get("touch")])):
            mark = "" if line["within"] else "  ABOVE THE LIMIT"
            print(
                f"{line['what']:52}{line['ours']:9.2f}{line['beside']:9.2f}{line['limit']:9.2f}{mark}",
                flush=True,
            )
        if "dvc_seconds" in found:
            print(f"{'  by dvc repro':52}{found['dvc_seconds']:9.2f}", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
