"""A stand-in for trtllm-build 1.2.1: its command line, its checks, no compiling.  See README.md."""

import argparse
import json
import os
import struct
import sys
from pathlib import Path

SWITCHES = (
    "context_fmha", "bert_context_fmha_fp32_acc", "remove_input_padding", "norm_quant_fusion",
    "reduce_fusion", "user_buffer", "use_paged_context_fmha", "use_fp8_context_fmha",
    "fuse_fp4_quant", "multiple_profiles", "paged_state", "streamingllm", "use_fused_mlp",
    "pp_reduce_scatter", "dora_plugin",
)  # fmt: skip
DTYPES = ["auto", "float16", "float32", "bfloat16", "int32", "disable"]
NEEDED = ("architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="trtllm-build")
    for name in ("checkpoint_dir", "model_config", "build_config", "input_timing_cache"):
        found.add_argument(f"--{name}")
    found.add_argument("--output_dir", default="engine_outputs")
    found.add_argument("--output_timing_cache", default="model.cache")
    found.add_argument("--max_batch_size", type=int, default=2048)
    found.add_argument("--max_input_len", type=int, default=1024)
    found.add_argument("--max_seq_len", "--max_decoder_seq_len", type=int)
    found.add_argument("--max_beam_width", type=int, default=1)
    found.add_argument("--max_num_tokens", type=int, default=8192)
    found.add_argument("--opt_num_tokens", type=int)
    found.add_argument("--tokens_per_block", type=int, default=32)
    found.add_argument("--kv_cache_type", choices=["paged", "continuous", "disabled"])
    found.add_argument("--paged_kv_cache")
    found.add_argument("--workers", type=int, default=1)
    found.add_argument("--logits_dtype", choices=["float16", "float32"])
    found.add_argument("--strip_plan", action="store_true")
    found.add_argument("--gather_context_logits", action="store_true")
    for name in ("gpt_attention_plugin", "bert_attention_plugin", "nccl_plugin", "moe_plugin"):
        found.add_argument(f"--{name}", choices=DTYPES, default="auto")
    found.add_argument("--gemm_plugin", choices=[*DTYPES, "fp8", "nvfp4"])
    for name in SWITCHES:
        found.add_argument(f"--{name}", choices=["enable", "disable"])
    return found


def header(path: Path) -> dict:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


def check(config: dict, folder: Path) -> None:
    """What the real one finds when it loads the weights."""
    for key in NEEDED:
        if key not in config:
            raise TypeError(f"PretrainedConfig.__init__() missing argument: '{key}'")
    mapping = config["mapping"]
    tp, pp = mapping["tp_size"], mapping["pp_size"]
    if mapping["world_size"] != tp * pp:
        raise ValueError(f"world_size must equal to tp_size * pp_size, {mapping['world_size']}")
    c, size = config, config["head_size"]
    heads, kv = c["num_attention_heads"] // tp, -(-c["num_key_value_heads"] // tp)
    hidden, ffn, vocab = c["hidden_size"], c["intermediate_size"] // tp, -(-c["vocab_size"] // tp)
    embedding = [c["vocab_size"], hidden]
    if c["use_parallel_embedding"]:
        embedding = [[vocab, hidden], [c["vocab_size"], hidden // tp]][c["embedding_sharding_dim"]]
    layers = c["num_hidden_layers"] // pp
    quantised = config["quantization"]["quant_algo"] is not None
    for rank in range(tp * pp):
        shapes = {}
        for layer in range(layers):
            at = f"transformer.layers.{layer}."
            shapes |= {
                f"{at}input_layernorm.weight": [hidden],
                f"{at}attention.qkv.weight": [(heads + 2 * kv) * size, hidden],
                f"{at}attention.dense.weight": [hidden, heads * size],
                f"{at}post_layernorm.weight": [hidden],
                f"{at}mlp.fc.weight": [ffn, hidden],
                f"{at}mlp.gate.weight": [ffn, hidden],
                f"{at}mlp.proj.weight": [hidden, ffn],
            }
        if rank < tp:
            shapes["transformer.vocab_embedding.weight"] = embedding
        if rank >= tp * (pp - 1):
            shapes |= {"transformer.ln_f.weight": [hidden], "lm_head.weight": [vocab, hidden]}
        found = header(folder / f"rank{rank}.safetensors")
        if missing := set(shapes) - set(found):
            raise RuntimeError(f"Required but not provided tensors:{missing}")
        for name, shape in shapes.items():
            if not quantised and found[name]["shape"] != shape:
                raise RuntimeError(
                    f"Encounter error 'The value updated is not the same shape as the original. "
                    f"Updated: {found[name]['shape']}, original: {shape}' for parameter '{name}'"
                )


def main() -> None:
    print("[TensorRT-LLM] TensorRT-LLM version: 1.2.1")
    options = parser().parse_args()
    checkpoint, out = Path(options.checkpoint_dir), Path(options.output_dir)
    config = json.loads((checkpoint / "config.json").read_bytes())
    check(config, checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    for rank in range(config["mapping"]["world_size"]):
        weights = (checkpoint / f"rank{rank}.safetensors").read_bytes()
        noise = os.urandom(16)  # engines are not reproducible
        (out / f"rank{rank}.engine").write_bytes(b"stand-in engine\n" + noise + weights)
    told = {key: value for key, value in vars(options).items() if value is not None}
    build = {key: told[key] for key in told if key not in ("checkpoint_dir", "output_dir")}
    description = {"version": "1.2.1", "pretrained_config": config, "build_config": build}
    (out / "config.json").write_text(json.dumps(description, indent=4))
    Path("model.cache").write_bytes(b"timings")
    if heard := os.environ.get("INGOT_STANDIN_ARGV"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        Path(heard).write_text(json.dumps({"argv": sys.argv[1:], "visible": visible}))
    print("[I] Total time of building all engines: 00:00:00")


if __name__ == "__main__":
    main()
