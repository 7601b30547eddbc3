"""A family with a table of its own: every record that its formats promise, from `ingot add` on."""

import json
import re

import pytest

import tokenizers_of

FORMATS = (
    "gguf",
    "q4_k_m.gguf",
    "w8a8.safetensors",
    "mlx",
    "onnx",
    "fp16.onnx",
    "openvino",
    "torchpipe",
)
MORE = {"qwen2": ("_tp2.trtllm-ckpt",), "qwen3": ("_tp1.vmfb",)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_each_format_has_a_record_by_independent_readers(kind, tiny, ingot, snakemake, store):
    """qwen2: biases, as many KV heads as heads; qwen3: norms of heads, two heads to a KV head."""
    checkpoint = tiny(kind)
    folder = checkpoint.parent
    tokenizers_of.as_qwen(checkpoint)
    done = ingot("add", kind, cwd=folder)
    assert done.returncode == 0 and "no table" not in done.stdout, done.stdout + done.stderr
    added = folder / "models.local.yaml"
    assert 'pre_tokenizer: "qwen2"' in added.read_text()
    added.write_text(added.read_text().replace("    path:", "    corpus_tokens: 1024\n    path:"))
    targets = [*(f".{name}" for name in FORMATS), *MORE[kind]]
    records = [f"artifacts/{kind}{target}.verified.json" for target in targets]
    done = snakemake(folder, "--", *records, environment={"INGOT_STORE": str(store)})
    assert done.returncode == 0, done.stderr[-3000:]
    for record in records:
        found = json.loads((folder / record).read_bytes())
        assert found["result"] == "passed" and "way" not in found, record
        if "numbers" in found["checks"] and not re.search("q4|w8a8|vmfb", record):
            assert found["checks"]["numbers"]["mean_kl"] < 1e-6, record
        if (
            ".gguf" in record
        ):  # which composes no letter and its mark, as the model's own tokenizer does
            assert found["checks"]["texts_split_otherwise_by_its_runtime"] == 1
