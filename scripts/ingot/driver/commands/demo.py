"""Build the demo's bundle and its records, serve it, ask it, and show what was built."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import shown
from ingot.driver.release.on_record import OnRecord
from ingot.driver.toolchains import toolchains
from ingot.formats.iree.shortfin import Server
from ingot.store.records import Store

BUNDLE = "artifacts/demo_tp1.shortfin"
PROGRAM = "artifacts/demo_tp1.vmfb.verified.json"
# Not the records of the GGUF file and of its archive: for them llama.cpp is compiled, ten minutes.
TARGETS = (PROGRAM, f"{BUNDLE}.verified.json")
SHOWN = (
    "demo.gguf",
    "demo.irpa",
    "demo_tp1.f32.mlir",
    "demo_tp1.vmfb",
    "demo_tp1.shortfin",
    "demo.reading.json",
    "demo.reference.npz",
    "demo_tp1.vmfb.verified.json",
    "demo_tp1.shortfin.verified.json",
)
QUESTION = "<|begin_of_text|>Name the capital of the United States.<|eot_id|>"
ANSWER = "Washington, D.C.!"


def add_options(parser: ArgumentParser) -> None:
    pass


def run(root: Path, options: Namespace) -> None:
    snakemake = Path(sys.executable).parent / "snakemake"
    started = time.monotonic()
    if shown([snakemake, "--quiet", "rules", "--", BUNDLE, *TARGETS], cwd=root):
        raise Refused(f"{BUNDLE}: not built; the lines above say why")
    print(f"\nBuilt and verified in {time.monotonic() - started:.0f} s.\n")
    print(f"{'artifacts/':36}{'seconds':>9}{'bytes':>14}")
    for name, seconds, size in _built(root):
        print(f"{name:36}{seconds:>9.1f}{size:>14,}")
    _numbers(root)
    with Server(root / BUNDLE, toolchains.python(root, "iree")) as server:
        print(f"\nServed by shortfin at {server.url}\n\n  {QUESTION}")
        answer = server.generate(text=QUESTION)
        print(f"  {answer}")
    if answer != ANSWER:
        raise Refused(f"{BUNDLE}: answered {answer!r}, expected {ANSWER!r}")


def _numbers(root: Path) -> None:
    checks = json.loads((root / PROGRAM).read_text())["checks"]
    share = checks["largest_logit_difference"] / checks["largest_logit"]
    print(
        f"\n{checks['greedy_equal']} of {checks['prompts']} prompts of "
        f"{checks['prompt_tokens'][0]} to {checks['prompt_tokens'][1]} tokens match transformers' "
        f"greedy output; logits differ by {share:.5%} at most."
    )


def _built(root: Path) -> Iterator[tuple[str, float, int]]:
    """Name, seconds and bytes of each step's artifact, by its record.

    Not by the files: a restored target comes without what it was made from.
    """
    found = OnRecord(root, Store(), [BUNDLE, *TARGETS], built=False, cwd=root)
    for name in SHOWN:
        if record := found.record(f"artifacts/{name}"):
            cost = found.store.config(record).get("cost", {})
            yield name, cost.get("seconds", 0.0), found.output(f"artifacts/{name}")["size"]
