"""An adapter merged in the stream, beside the plain conversion, and beside PEFT's merge with one after it.

    .venv/bin/python bench/adapter.py [--layers 8] [--rank 16] [--turns 12]

A random Llama of ~0.9 GB, an adapter of all its linear layers.  Each command is a whole process writing
to the page cache; wall times are the best of so many in turns (of one for the peer), memory is the kernel's
ru_maxrss.  Some virtual machines hand memory that is free for two seconds back to their host, and wait
2.7 seconds a GB when it is used again.  A run of less than two seconds uses the memory of the one before;
with longer ones, the best run of the one command is compared with the usual one of the other.
The peer is merge_and_unload, save_pretrained, and then our own plain conversion.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from convert import ROOT, make_checkpoint, measure

sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import adapters  # noqa: E402
import checkpoints  # noqa: E402
from ingot.driver.catalogue.rules import environment  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

LIMIT, RSS_LIMIT = 1.3, 100  # times the plain conversion with the input in memory; MB
MERGE = """
import sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(out)
"""


def make_adapter(base: Path, folder: Path, rank: int) -> None:
    config = json.loads((base / "config.json").read_bytes())
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in checkpoints.shapes(config).items():
        if "_proj.weight" not in name:
            continue
        module = f"base_model.model.{name.removesuffix('.weight')}"
        for letter, size in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
            values = rng.standard_normal(size, np.float32) * np.float32(0.02)
            tensors[f"{module}.lora_{letter}.weight"] = values
    settings = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    adapters.saved(folder, tensors, r=rank, lora_alpha=2 * rank, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=12)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("INGOT_BENCH_DIR")))
    try:
        sys.exit(0 if run(folder, asked.layers, asked.rank, asked.turns) else 1)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, layers: int, rank: int, turns: int) -> bool:
    os.environ[environment.PRODUCTS] = "1"  # as steps have it
    convert, transformers = (toolchains.python(ROOT, name) for name in ("convert", "transformers"))
    base, lora = folder / "base", folder / "lora"
    for make, words in ((make_checkpoint, (base, layers)), (make_adapter, (base, lora, rank))):
        # in another process: a child's ru_maxrss starts at the size of the parent that forked it
        one = multiprocessing.get_context("spawn").Process(target=make, args=words)
        one.start()
        one.join()
    files = [*base.glob("*.json"), *base.glob("*.safetensors")]

    def ours(
        *more: Path, script: str = "safetensors_to_gguf.py", out: str = "m.gguf", times: int = 3
    ) -> tuple:
        words = ["--dtype", "bf16", "--pre-tokenizer", "llama-bpe", "--gguf", folder / out]
        if script == "lora_to_gguf.py":
            words = ["--lora", folder / out]
        command = [convert, ROOT / "scripts" / script, "--checkpoint", *more, "--name", "Bench"]
        return measure([*command, *words], folder, times)

    pair = [*lora.iterdir()]
    size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    runs = [(ours(*files, times=1), ours(*files, *pair, times=1)) for _ in range(turns)]
    plain = min(one[0] for one, _ in runs)
    merged, rss = min(other[0] for _, other in runs), max(other[1] for _, other in runs)
    beside, beside_rss = ours(
        base / "config.json", *pair, script="lora_to_gguf.py", out="m.lora.gguf"
    )
    words = [transformers, "-c", MERGE, base, lora, folder / "theirs"]
    peer, peer_rss = measure(words, folder, 1)
    theirs = [*base.glob("[!m]*.json"), *(folder / "theirs").glob("model*")]
    peer += ours(*theirs, out="theirs.gguf")[0]
    print(f"base {size / 1e9:.2f} GB, adapter of rank {rank} {pair_bytes(lora) / 1e6:.0f} MB")
    print(f"plain conversion to bf16  {plain:6.2f} s")
    good = merged <= LIMIT * plain and rss <= RSS_LIMIT
    print(
        f"with the adapter merged   {merged:6.2f} s, {rss:.0f} MB: {merged / plain:.2f} of the plain one "
        f"(limits {LIMIT}, {RSS_LIMIT} MB){'' if good else '   OVER A LIMIT'}"
    )
    print(
        f"PEFT, then the plain one  {peer:6.2f} s, {peer_rss:.0f} MB: {peer / merged:.1f} times as long"
    )
    place = folder / "m.lora.gguf"
    print(
        f"M.lora.gguf               {beside:6.2f} s, {beside_rss:.0f} MB, "
        f"{place.stat().st_size / 1e6:.0f} MB on disk beside {(folder / 'm.gguf').stat().st_size / 1e6:.0f}"
    )
    return good


def pair_bytes(lora: Path) -> int:
    return sum(path.stat().st_size for path in lora.iterdir())


if __name__ == "__main__":
    main()
