"""Quantised checkpoints by our stream, beside llm-compressor and mlx-lm: wall and CPU time, memory.

    .venv/bin/python bench/quantised.py [--gigabytes 1.4] [--only fp8 4bit ...] [--alone]

A random Llama.  Each command is a whole process, run once, writing to the page cache; CPU time is the
process's own and the kernel's, memory its ru_maxrss.  The tensors are the same: ours are asked for the
rounding that llm-compressor has on a CPU.  --alone leaves the peers out.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from convert import ROOT, make_apart, run_once

sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import checkpoints  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

PRESETS = {
    "fp8": "FP8_DYNAMIC", "fp8_block": "FP8_BLOCK", "w8a8": "W8A8", "w4a16": "W4A16",
    "mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16",
}  # fmt: skip
MLX = {"4bit": 4, "8bit": 8}
LEAST, MOST = 1.5, 150  # times fewer seconds of CPU than llm-compressor; MB
LAYER = 2048 * (2 * 2048 + 2 * 512 + 3 * 7168) * 2  # bytes


def digests(folder: Path) -> dict[str, str]:
    """By tensor, of its dtype, shape and bytes."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            said = json.loads(file.read(start - 8))
            for name, one in said.items():
                if name != "__metadata__":
                    file.seek(start + one["data_offsets"][0])
                    data = file.read(one["data_offsets"][1] - one["data_offsets"][0])
                    text = f"{one['dtype']}{one['shape']}".encode()
                    found[name] = hashlib.sha256(text + data).hexdigest()
    return found


def ours(kind: str, checkpoint: Path, out: Path) -> list:
    small = [checkpoint / name for name in ("tokenizer.json", "tokenizer_config.json")]
    words = ["--checkpoint", checkpoint, "--tokenizer", *small]
    python = toolchains.python(ROOT, "convert")
    if kind in MLX:
        return [python, ROOT / "scripts/quantize_mlx.py", *words, "--bits", MLX[kind], "--mlx", out]
    script = ROOT / "scripts/quantize_safetensors.py"
    return [python, script, *words, "--scheme", kind, "--quotient=stored", "--safetensors", out]


def theirs(kind: str, checkpoint: Path, out: Path) -> tuple[list, str, Path]:
    """The command, what it is said, and where it writes."""
    tool, word = ("mlx", MLX[kind]) if kind in MLX else ("llmcompressor", PRESETS[kind])
    script = ROOT / "tests/doubles/oracle_quantised.py"
    asked = json.dumps([[str(checkpoint), str(out), [word]]])
    return [toolchains.python(ROOT, tool), script, tool], asked, out / str(word)


def figures(command: list, folder: Path, said: str = "") -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, MB."""
    wall, used = run_once(command, folder, said)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def row(kind: str, checkpoint: Path, folder: Path, alone: bool) -> bool:
    """One kind: a line of figures; whether they are within the limits."""
    out = folder / "ours"
    wall, seconds, memory = figures(ours(kind, checkpoint, out), folder)
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    line = f"{kind:10}{size / 1e9:6.2f} GB{wall:8.2f} s{seconds:8.2f} s{memory:6.0f} MB"
    good = memory <= MOST
    if not alone:
        command, asked, made = theirs(kind, checkpoint, folder / "theirs")
        peer_wall, peer, peer_memory = figures(command, folder, asked)
        if digests(out) != digests(made):
            sys.exit(f"{kind}: not the peer's tensors")
        good = good and (kind in MLX or peer >= LEAST * seconds)
        line += f"{peer_wall:8.2f} s{peer:8.2f} s{peer_memory:7.0f} MB{peer / seconds:7.1f}x"
        shutil.rmtree(folder / "theirs")
    shutil.rmtree(out)
    print(line + ("" if good else "   OVER A LIMIT"), flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = (*PRESETS, *MLX)
    parser.add_argument("--gigabytes", type=float, default=1.4)
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, metavar="KIND")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("INGOT_BENCH_DIR")))
    try:
        checkpoint = folder / "checkpoint"
        config = checkpoints.llama_config(
            hidden_size=2048, intermediate_size=7168, num_attention_heads=32, num_key_value_heads=8,
            num_hidden_layers=max(1, round(asked.gigabytes * 1e9 / LAYER)), rope_scaling=None,
            tie_word_embeddings=False,
        )  # fmt: skip
        make_apart(checkpoint, 0, config)
        size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
        print(
            f"{size / 1e9:.2f} GB in bfloat16: wall, CPU and memory of ours, of the peer; limits "
            f"{LEAST}x CPU, {MOST} MB"
        )
        figures(
            ours(asked.only[0], checkpoint, folder / "first"), folder
        )  # its digest goes on record
        shutil.rmtree(folder / "first")
        kept = [row(kind, checkpoint, folder, asked.alone) for kind in asked.only]
    finally:
        shutil.rmtree(folder)
    if not asked.alone:
        print("All tensors equal the peers'.")
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
