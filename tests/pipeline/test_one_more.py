"""What is to be added is one thing in one place: a family a file and its line, a quantisation a row."""

import json

import checkpoints
from conftest import llama_cpp
from ingot.model.families.table import FAMILIES

QWEN2 = """
from dataclasses import replace

from ingot.model.families.llama import LLAMA

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    gguf="qwen2",
    layer={
        name: replace(one, heads="", bias="attention_bias" if name in QKV else "")
        for name, one in LLAMA.layer.items()
    },
    gguf_lacks=(
        "vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length"
    ),
    needs=("own_gguf",),
    always=("attention_bias",),
    counts_kv_heads=False,
    neutral={"use_sliding_window": (None, False)},
)
"""


def test_a_family_is_one_file_and_a_line(clone, build, forked):
    """Qwen2, which is no family of ours: GGUF, llama.cpp's bytes, verified; ONNX too; the rest refused."""
    folder = clone("a")
    families = folder / "scripts/ingot/model/families"
    assert "Qwen2ForCausalLM" not in FAMILIES, "take a family that we lack"
    (families / "qwen2.py").write_text(f'"""Qwen2."""\n{QWEN2}')
    table = families / "table.py"
    line = "from ingot.model.families.mistral import MISTRAL\n"
    table.write_text(
        table.read_text()
        .replace(line, f"{line}from ingot.model.families.qwen2 import QWEN2\n")
        .replace("(LLAMA, MISTRAL)", "(LLAMA, MISTRAL, QWEN2)")
    )
    checkpoints.qwen2(folder / "q")
    entry = "path: q, name: A name, architecture: Qwen2ForCausalLM, pre_tokenizer: llama-bpe"
    (folder / "mine.yaml").write_text(f"models: {{q: {{{entry}, corpus_tokens: 1024}}}}")
    targets = [f"artifacts/q.{kind}.verified.json" for kind in ("gguf", "q8_0.gguf", "onnx")]
    build(folder, "--configfile", "mine.yaml", "--", *targets)
    for target in targets:
        assert json.loads((folder / target).read_bytes())["result"] == "passed"
    done = llama_cpp(forked, [[str(folder / "q"), str(folder), "llama-bpe"]], ["f16", "q8_0"])
    assert done.returncode == 0, done.stderr[-3000:]
    for ours, theirs in (("q", "f16"), ("q.q8_0", "q8_0")):
        made = (folder / f"artifacts/{ours}.gguf").read_bytes()
        assert made == (folder / f"{theirs}.gguf").read_bytes(), theirs
    for target in ("q_tp1.vmfb", "q_tp1.trtllm-ckpt"):
        said = build(
            folder, "-n", "--configfile", "mine.yaml", "--", f"artifacts/{target}", fails=True
        )
        assert ", which ." in said and "cannot express; nearest: artifacts/q" in said


def test_a_quantisation_of_libllamas_is_one_row(clone, build):
    """q2_k_s, which is no row of ours: planned, built from a matrix, held to its limits, in a set."""
    folder = clone("a")
    table = folder / "scripts/ingot/formats/gguf/quantisations.py"
    row = '    "q2_k_s": Row(21, 3.0, 0.6, by_imatrix=True),\n'
    table.write_text(table.read_text().replace("ROWS = {\n", f"ROWS = {{\n{row}"))
    target = "artifacts/demo.q2_k_s.gguf.verified.json"
    demo = "corpus_tokens: 1024, quants: [q2_k_s]"
    (folder / "mine.yaml").write_text(f"models: {{demo: {{{demo}}}}}")
    said = build(folder, "-n", "--configfile", "mine.yaml", "--", target, fails=True)
    assert "q2_k_s needs an importance matrix; set models.demo.imatrix to a text" in said
    text = (folder / "models/corpus.txt").read_text()[:12_000]
    (folder / "text.txt").write_text(text)
    (folder / "mine.yaml").write_text(f"models: {{demo: {{{demo}, imatrix: text.txt}}}}")
    build(folder, "--configfile", "mine.yaml", "--", target, "artifacts/demo.quants")
    numbers = json.loads((folder / target).read_bytes())["checks"]["numbers"]
    assert numbers["limits"]["mean_kl"] == 2.4 and numbers["mean_kl"] <= 2.4
    assert (folder / "artifacts/demo.quants/demo.q2_k_s.gguf").exists()
