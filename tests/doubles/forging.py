"""Who refuses what a wrong maker makes: both run from one copy of scripts/, with its edit.

What they are compared with (reference, texts, scores) was made before, by transformers.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import families
from checkout import copy_modules
from forgeries import DEEPSEEK, GPT_OSS, Forgery

ROOT = Path(__file__).resolve().parents[2]
HEADER = ("--name", "Ingot Demo", "--pre-tokenizer", "llama-bpe", "--license", "apache-2.0")
SCHEMES = ("fp8", "fp8_block", "w8a8", "w4a16", "mxfp4", "nvfp4")
CALIBRATED = ("fp8_static", "w8a8_gptq", "w4a16_gptq", "w4a16_awq", "nvfp4_a4")
MLX = {"mlx": "0", "4bit": "4", "8bit": "8"}
LOOSE = ("mean_kl=0.3",)  # of random weights, which four bits change more than a model's
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

OTHERS = ("SmolLM3", "Granite", "OLMo 2", "Gemma 2", "Gemma 3")
# What the right makers make, by its shape and kind, that must have a record
RIGHT = [("demo", "ranks")]  # of a Llama and a Mistral alone
RIGHT += [
    (name, kind)
    for name in ("demo", "Qwen2", "Qwen3")
    for kind in ("gguf", "irpa", "trtllm-ckpt", "onnx")
]
RIGHT += [(name, "gguf") for name in ("Qwen3-MoE", "Mixtral", *OTHERS)]
RIGHT += [(name, "gguf") for name in ("gpt-oss", "gpt-oss, bfloat16 experts", GPT_OSS)]
RIGHT += [(name, "gguf") for name in ("DeepSeek-V3", "DeepSeek-V2-Lite", DEEPSEEK, "Qwen3, FP8")]
RIGHT += [("Mixtral", "trtllm-ckpt")]
RIGHT += [(name, "onnx") for name in OTHERS]
RIGHT += [("demo", kind) for kind in (*SCHEMES, *MLX)]
RIGHT += [
    ("demo, float32", "w4a16_awq"),
    ("demo", "nvfp4_a4"),
    ("Gemma 2", "fp8_static"),
    ("Mixtral", "w8a8_gptq"),
]
RIGHT += [("Qwen3-MoE", kind) for kind in ("fp8", "mlx")]
RIGHT += [("SmolLM3, transformers 5", "8bit"), ("Qwen2", "mlx")]
RIGHT += [("Seed-OSS", kind) for kind in ("gguf", "onnx", "mlx")]
RIGHT += [
    ("Seed-OSS, no biases", "gguf"),
    ("Seed-OSS, unsaid", "gguf"),
    ("Seed-OSS, unsaid", "onnx"),
]
RIGHT += [("Phi-3, LongRoPE", "gguf"), ("Phi-4-mini", "gguf")]
RIGHT += [("Phi-3", kind) for kind in ("onnx", "fused", "mlx", "fp8")]
RIGHT += [(name, "fused") for name in ("SmolLM3", "Gemma 2", "Gemma 3")]


def forge(one: Forgery, folder: Path) -> Path:
    """A copy of scripts/ with the edit; a change that finds nothing to change is a fault of the list."""
    scripts = folder / "scripts"
    copy_modules(ROOT / "scripts", scripts)
    path = scripts / "ingot" / one.file
    text = path.read_text()
    for old, new in one.changes:
        if old not in text:
            raise AssertionError(f"{path}: {old!r} is not in it")
        text = text.replace(old, new)
    path.write_text(text)
    os.utime(path, (0, 0))  # no time of anything that was compiled
    return scripts


def steps(one: Forgery, kind: str, folder: Path, peers: dict) -> Iterator[tuple[str, str, list]]:
    """Toolchain, script and options of each step of a kind: what reads, what makes, what verifies.

    `peers` are the options of what transformers made, by name, and the checkpoint that it read.
    """
    reading, source = peers["reading"], Path(peers["checkpoint"])
    record = ["--record", folder / "record.json"]
    checkpoint = ["--checkpoint", source]
    peers = [word for name in ("reference", "texts", "scores") for word in peers[name]]
    gguf, digests = ["--gguf", folder / "m.gguf"], ["--digests", folder / "d.json"]
    if kind in ("gguf", "irpa"):
        # rounded, a random router chooses other experts
        routed = ("Qwen3-MoE", "Mixtral", "gpt-oss", "DeepSeek")
        dtype = "f32" if one.of.startswith(routed) else "f16"
        header = [*HEADER]
        if one.of in families.PIECED:
            header[3] = "default"
        made = [*checkpoint, *gguf, "--dtype", dtype, *header]
        yield "convert", "safetensors_to_gguf.py", made
        of_gguf = ["--record", folder / "m.gguf.json"]
        yield "llamacpp", "verify_gguf.py", [*made, *reading, *peers, *of_gguf]
    if kind == "irpa":
        irpa = [*gguf, "--irpa", folder / "m.irpa"]
        yield "convert", "gguf_to_irpa.py", irpa
        yield "iree", "verify_irpa.py", [*irpa, "--gguf-record", folder / "m.gguf.json", *record]
    if kind == "ranks":
        root, ranks = folder / "r.irpa", [folder / f"r.rank{rank}.irpa" for rank in range(2)]
        made = [*checkpoint, "--dtype", "f16", "--root", root, "--ranks", *ranks]
        yield "convert", "shard_irpa.py", [*made, "--tp", "2"]
        yield "convert", "digest_weights.py", [*checkpoint, "--dtype", "f16", *digests]
        yield "iree", "verify_shards.py", [*made[2:], *digests, *reading, *record]
    if kind == "trtllm-ckpt":
        made = [*checkpoint, "--tp", "2", "--trtllm-checkpoint", folder / "t"]
        yield "convert", "safetensors_to_trtllm.py", made
        yield "convert", "digest_weights.py", [*checkpoint, "--dtype", "f16", *digests]
        yield "convert", "verify_trtllm.py", [*made[2:], *digests, *reading, *record]
    if kind in SCHEMES or kind in CALIBRATED or kind in MLX:
        small = [source / name for name in SMALL if (source / name).exists()]
        made = [*checkpoint, "--tokenizer", *small]
        if kind in MLX:
            made += ["--bits", MLX[kind], "--mlx", folder / "q"]
            maker, runner, verifier = "quantize_mlx.py", "mlx", "verify_mlx.py"
        else:
            made += ["--scheme", kind, "--safetensors", folder / "q"]
            maker, runner, verifier = (
                "quantize_safetensors.py",
                "transformers",
                "verify_safetensors.py",
            )
        if kind in CALIBRATED:
            text = folder / "text"  # what four windows take
            text.write_text((ROOT / "LICENSE").read_text()[:5600])
            yield "llmcompressor", "compress_safetensors.py", [*made, "--text", text]
            made.append("--compressed")
        else:
            yield "convert", maker, made
        limits = [] if one.of.startswith("demo") else ["--limit", *LOOSE]
        yield runner, verifier, [*made, *peers, *limits, *record]
    if kind in ("onnx", "fused"):
        places = [source / name for name in (*SMALL, "tokenizer.model")]
        small = [path for path in places if path.exists()]
        graph = ["--graph", "fused"] if kind == "fused" else []
        made = [*checkpoint, "--tokenizer", *small, "--onnx", folder / "o", *graph]
        yield "onnx", "export_onnx.py", made
        yield "onnx", "verify_onnx.py", [*made, *reading, *peers, *record]


def caught(one: Forgery, kind: str, folder: Path, run, peers: dict) -> str | None:
    """The step that refused what the wrong maker made, and its words; None where all passed.

    run(toolchain, script, ...) runs a script there.
    """
    folder.mkdir(parents=True)
    scripts = forge(one, folder)
    for toolchain, script, words in steps(one, kind, folder, peers):
        done = run(toolchain, scripts / script, *words)
        if done.returncode:
            if "Traceback" in done.stderr:
                raise AssertionError(f"{one.name}: {script}: {done.stderr[-1500:]}")
            return f"{script}: {done.stderr.strip().splitlines()[-1]}"
    return None
