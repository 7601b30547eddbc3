"""Build the demo's bundle and its records, serve it, ask it, and show what was built."""

import csv
import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.catalogue import toolchains
from ingot.iree.shortfin import Server
from ingot.refused import Refused

BUNDLE = "artifacts/demo_tp1.shortfin"
PROGRAM = "artifacts/demo_tp1.vmfb.verified.json"
# Not the GGUF file's own record: for it llama.cpp is compiled, ten minutes.
TARGETS = ("artifacts/demo.irpa.verified.json", PROGRAM, f"{BUNDLE}.verified.json")
STEPS = (  # rule, its log's name, what it makes
    ("safetensors_to_gguf", "demo", "demo.gguf"),
    ("gguf_to_irpa", "demo", "demo.irpa"),
    ("export_mlir", "demo_tp1.f32", "demo_tp1.f32.mlir"),
    ("compile_vmfb", "demo_tp1", "demo_tp1.vmfb"),
    ("bundle_shortfin", "demo_tp1", "demo_tp1.shortfin"),
    ("verify_irpa", "demo", "demo.irpa.verified.json"),
    ("generate_reference", "demo", "demo.reference.npz"),
    ("verify_vmfb", "demo_tp1", "demo_tp1.vmfb.verified.json"),
    ("verify_shortfin", "demo_tp1", "demo_tp1.shortfin.verified.json"),
)
QUESTION = "<|begin_of_text|>Name the capital of the United States.<|eot_id|>"
ANSWER = "Washington, D.C.!"


def add_options(parser: ArgumentParser) -> None:
    pass


def run(root: Path, options: Namespace) -> None:
    snakemake = Path(sys.executable).parent / "snakemake"
    started = time.monotonic()
    built = subprocess.run([snakemake, "--quiet", "rules", "--", BUNDLE, *TARGETS], cwd=root)
    if built.returncode:
        raise Refused(f"{BUNDLE}: not built; the lines above say why")
    print(f"\nBuilt and verified in {time.monotonic() - started:.0f} s.\n")
    print(f"{'artifacts/':36}{'seconds':>9}{'bytes':>14}")
    for rule, log, name in STEPS:
        seconds = _seconds(root / "logs" / rule / f"{log}.tsv")
        print(f"{name:36}{seconds:>9}{_size(root / 'artifacts' / name):>14,}")
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
        f"{checks['prompt_tokens'][0]} to {checks['prompt_tokens'][1]} tokens give transformers' "
        f"greedy tokens; logits differ by {share:.5%} at most."
    )


def _seconds(path: Path) -> str:
    if not path.exists():
        return "-"
    with path.open() as file:
        row = next(csv.DictReader(file, delimiter="\t"))
    return f"{float(row['s']):.1f}"


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size
