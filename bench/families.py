"""Each family's GGUF file by our own stream, beside llama.cpp's converter: CPU time and memory.

    .venv/bin/python bench/families.py [--gigabytes 1.4] [--only Qwen3-MoE ...] [--dtype f16]

A random checkpoint of each, of one size.  Each command is a whole process, run once, writing to the page
cache; CPU time is the process's own and the kernel's, memory its ru_maxrss.  The bytes are the same.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from convert import ROOT, make_apart, run_once

sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import checkpoints  # noqa: E402
import families  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

NAMES = (
    "Qwen2", "Qwen3", "Qwen3-MoE", "Mixtral", "Gemma 2", "Gemma 3", "SmolLM3", "Granite", "OLMo 2",
    "Phi-3", "DeepSeek-V3", "DeepSeek-V3, FP8", "gpt-oss", "gpt-oss, bfloat16 experts, transformers 5",
)  # fmt: skip
LEAST, MOST = 3, 100  # times fewer seconds of CPU than the peer; MB
WIDE = {
    "hidden_size": 2048, "intermediate_size": 7168, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 1056, "pad_token_id": None,
}  # fmt: skip
OWN = {
    "Qwen3-MoE": {"num_experts": 32, "moe_intermediate_size": 768, "head_dim": 64},
    "Mixtral": {"num_local_experts": 8, "intermediate_size": 3584},
    **{name: {"num_local_experts": 32, "intermediate_size": 2048} for name in NAMES[-2:]},
    **{
        name: {
            "num_key_value_heads": 32, "n_routed_experts": 32, "moe_intermediate_size": 768,
            "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        }
        for name in NAMES if name.startswith("DeepSeek")
    },
    "Qwen3": {"head_dim": 64}, "Gemma 2": {"head_dim": 64}, "Gemma 3": {"head_dim": 64},
}  # fmt: skip
WIDTHS = {"U8": 1, "F8_E4M3": 1, "F32": 4}
BY_LAYER = ("layer_types", "no_rope_layers")  # which transformers fills in


def config_of(name: str, gigabytes: float) -> dict:
    """Of as many layers as make that size."""
    said = {key: one for key, one in families.SHAPES[name].items() if key not in BY_LAYER}
    config = checkpoints.llama_config(**{"rope_scaling": None, **said, **WIDE, **OWN.get(name, {})})
    config = {key: value for key, value in config.items() if value is not None}
    if "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = config["head_dim"]

    def size(layers: int) -> int:
        said = {**config, "num_hidden_layers": layers}
        kinds = {name: (one, None) for name, one in checkpoints.shapes(said).items()}
        kinds = families.quantised(said, kinds | families.more(said))
        return sum(math.prod(one) * WIDTHS.get(only, 2) for one, only in kinds.values())

    each = size(2) - size(1)
    return {**config, "num_hidden_layers": max(1, round((gigabytes * 1e9 - size(0)) / each))}


def cost(command: list, folder: Path, said: str = "") -> tuple[float, float]:
    """Seconds of CPU and MB of a command that is `said` this."""
    _, used = run_once(command, folder, said)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def row(name: str, gigabytes: float, dtype: str, folder: Path) -> bool:
    """One family: a line of figures; whether they are within the limits."""
    checkpoint = folder / "checkpoint"
    make_apart(checkpoint, 0, config_of(name, gigabytes))
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    ours = [
        toolchains.python(ROOT, "convert"), ROOT / "scripts/safetensors_to_gguf.py", "--checkpoint",
        checkpoint, "--gguf", folder / "m.gguf", "--dtype", dtype, "--name", "Bench",
        "--pre-tokenizer", "default" if name in families.PIECED else "llama-bpe",
    ]  # fmt: skip
    if name in families.PIECED:
        script, texts = ROOT / "tests/doubles/sentencepieces.py", ROOT / "models/corpus.txt"
        python = toolchains.python(ROOT, "llamacpp-hf")
        more = ["--plain"] if families.PIECED[name] == "plain" else []
        cost([python, script, folder / "pieces", texts, *more], folder)
        for path in (folder / "pieces").iterdir():
            path.replace(checkpoint / path.name)
    cost(ours, folder)  # once before: then the input's digest is on record, as after a fetch
    # to replace it the kernel would free its pages, which it need not for the peer's
    (folder / "m.gguf").unlink()
    seconds, memory = cost(ours, folder)
    llama_cpp = toolchains.place(ROOT, "llamacpp") / "llama.cpp"
    python = toolchains.python(ROOT, "iree")
    theirs = [python, ROOT / "tests/doubles/oracle.py", llama_cpp, "Bench", dtype]
    asked = json.dumps([[str(checkpoint), str(folder), "llama-bpe"]])
    peer, peer_memory = cost(theirs, folder, asked)
    if subprocess.run(["cmp", folder / "m.gguf", folder / f"{dtype}.gguf"], check=False).returncode:
        sys.exit(f"{name}: not the bytes of llama.cpp's converter")
    good = peer >= LEAST * seconds and memory <= MOST
    print(
        f"{name.split(',')[0]:10}{size / 1e9:6.2f} GB{seconds:8.2f} s{memory:6.0f} MB"
        f"{peer:8.2f} s{peer_memory:7.0f} MB"
        f"{peer / seconds:7.1f}x{'' if good else '   OVER A LIMIT'}",
        flush=True,
    )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.4)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="FAMILY")
    parser.add_argument("--dtype", default="f16", choices=("f32", "f16", "bf16", "q8_0"))
    asked = parser.parse_args()
    place, kept = os.environ.get("INGOT_BENCH_DIR"), []
    print(f"to {asked.dtype}: CPU and memory of ours, of llama.cpp's; limits {LEAST}x, {MOST} MB")
    for name in asked.only:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
        try:
            kept.append(row(name, asked.gigabytes, asked.dtype, folder))
        finally:
            shutil.rmtree(folder)
    print("All bytes equal llama.cpp's.")
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
