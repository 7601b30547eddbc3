"""`ingot rank`: the bytes that a rank fetches beside its share, of three layouts, from two kinds of server.

    .venv/bin/python bench/rank.py                     1.4 GB in five shards, tp 8, ranks 0 and 7
    .venv/bin/python bench/rank.py --gigabytes 0.02    a smaller one
    .venv/bin/python bench/rank.py --plan              of 8B, 70B and 405B what would be asked for

A stand-in hub on loopback serves a random model; another folder has the sets and their records.  Every
rank must be that of the set.  The share is what a rank's tensors take in the checkpoint.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import yaml
from stream import PATIENCE, ROOT, Watch, model

import checkpoints  # of tests/doubles, by stream
import shard_irpa
from fake_hub import Hub
from ingot.base import digest
from ingot.formats.iree import tensor_parallel
from ingot.model.checkpoint import wanted
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import read_config
from ingot.model.hub import ranges
from ingot.model.specs import specs_of

TP = 8
LAYOUTS = {  # what a set is called -> a rank's file, and the last rank
    "made_tp8.irpa": ("made_tp8.rank{}.irpa", 7),
    "made_tp8.trtllm-ckpt": ("made_tp8.trtllm-ckpt/rank{}.safetensors", 7),
    "staged_tp4.trtllm-ckpt": ("staged_tp4.trtllm-ckpt/rank{}.safetensors", 7),
}
SHARDS = {"llama8b": 4, "llama70b": 30, "llama405b": 191}


def run(folder: Path, hub: Hub, *words: str) -> str:
    """What a command says; the end where it stops."""
    own = {"INGOT_STORE": str(folder / "store"), "HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    done = subprocess.run(
        [str(ROOT / ".venv/bin" / words[0]), *words[1:]], cwd=folder, env=os.environ | own, text=True,
        capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(words[:3])}: it stopped:\n{done.stderr[-3000:]}")
    return done.stderr


def measured(place: Path, hub: Hub, layouts: list[str], cases: list[tuple[bool, bool]]) -> int:
    """1 where a rank is not that of the set.

    Each case: is it the last rank, or the first; does the server answer for one range alone, or for many?
    """
    own = ["--configfile", str(place / "mine.yaml")]
    (there := place / "there").mkdir()
    records = [f"artifacts/{name}.verified.json" for name in layouts]
    run(there, hub, "snakemake", "-s", str(ROOT / "Snakefile"), "-q", "all", *own, "--", *records)
    wrong = 0
    for name in layouts:
        pattern, last = LAYOUTS[name]
        for at_end, single in cases:
            rank = last if at_end else 0
            folder = place / f"{name}-{rank}-{single}"
            folder.mkdir()
            hub.faults["single"] = single
            record = str(there / f"artifacts/{name}.verified.json")
            before, began = hub.sent, time.monotonic()
            with Watch(folder) as watch:
                words = (f"artifacts/{name}", str(rank), "--record", record)
                said = run(folder, hub, "ingot", "rank", *own, *words)
            seconds, sent = time.monotonic() - began, (hub.sent - before) / 1e6
            share, whole, count = numbers(said)
            path = pattern.format(rank)
            same = digest.read(folder / "ranks" / path) == digest.read(there / "artifacts" / path)
            wrong += not same
            size = (folder / "ranks" / path).stat().st_size / 1e6
            print(
                f"{name:22} rank {rank} {'one range' if single else 'many':9} {seconds:6.1f} s  share "
                f"{share:7.1f} MB, {share / whole:.3f} of the weights; bytes / share {sent / share:.3f}, "
                f"{count:.0f} requests; disk {watch.disk / 1e6 / size:.2f} of the rank, "
                f"a step {watch.one / 1e6:.0f} MB; {'equal' if same else 'DIFFERS'}",
                flush=True,
            )
    return 1 if wrong else 0


def numbers(said: str) -> list[float]:
    """MB of the share and of the weights; requests."""
    pattern = r"([\d,.]+) of ([\d,.]+) MB wanted, [\d,.]+ MB came in (\d+) requests"
    return [float(one.replace(",", "")) for one in re.search(pattern, said).groups()]


def planned(place: Path) -> None:
    """What a rank of published shapes would ask for, by what the steps themselves say."""
    for name, shards in SHARDS.items():
        folder = checkpoints.weightless(place / name, name, shards)
        config = read_config(folder / "config.json", None, tensor_parallel.can(TP))
        tensors = read_checkpoint(Checkpoint([folder]))
        specs = specs_of(config, "f16")
        cuts = tensor_parallel.splits([(one.name, one.type.name, one.shape) for one in specs])
        sources = {one.name: one.source for one in specs}
        rows = SimpleNamespace(tensors=tensors, coming=SimpleNamespace(place=tensors))
        share = parts = asked = came = one_by_one = 0
        for _, first, count, often, far in wanted.spans(
            rows, shard_irpa.needs(cuts, sources, TP, [3])
        ):
            found = [(first + n * far, first + n * far + count) for n in range(often)]
            many = [*ranges.batched(found, True)]
            each = [*ranges.batched(found, False)]
            share, parts, asked = share + count * often, parts + often, asked + len(many)
            came += sum(end - start for batch in each for start, end in batch)
            one_by_one += len(each)
        print(
            f"{name:10} tp {TP} rank 3: share {share / 1e9:.2f} GB in {parts:,} ranges; of many a request "
            f"{asked:,} requests; of one {one_by_one:,} requests of {came / share:.2f} of the share",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.4)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--last", action="store_true", help="the last rank alone, by many ranges")
    parser.add_argument("--plan", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("INGOT_BENCH_DIR")) as name:
        place = Path(name)
        if options.plan:
            planned(place)
            return 0
        weights = model(place, options.gigabytes, options.shards, stages=2)
        catalogue = yaml.safe_load((place / "mine.yaml").read_text())
        made = catalogue["models"]["made"]
        made["tp"] = [1, 4, 8]
        catalogue["models"]["staged"] = {**made, "trtllm": {"pp": 2, "embedding": "columns"}}
        (place / "mine.yaml").write_text(yaml.safe_dump(catalogue))
        print(f"{weights / 1e6:,.0f} MB of weights in {options.shards} shards", flush=True)
        with Hub(place / "hub") as hub:
            more = [] if options.last else [(False, False), (True, True)]
            return measured(place, hub, options.layouts, [(True, False), *more])


if __name__ == "__main__":
    sys.exit(main())
