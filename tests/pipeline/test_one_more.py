"""What is to be added is one thing in one place: a family a file and its line, a quantisation a row."""

import json

from conftest import llama_cpp
from ingot.formats.gguf.quantisations import ROWS
from ingot.model.families.table import FAMILIES

SEED_OSS = """
from dataclasses import replace

from ingot.model.families.qwen2 import QWEN2

NAMED = {"post_attention_layernorm": "post_attention_norm"}
SEED_OSS = replace(
    QWEN2,
    architecture="SeedOssForCausalLM",
    model_type="seed_oss",
    gguf="seed_oss",
    layer={
        name: replace(one, gguf=NAMED.get(name, one.gguf)) for name, one in QWEN2.layer.items()
    },
    names_head_dim=True,
    trtllm=None,
    neutral={"attention_out_bias": (None, False), "residual_dropout": (None, 0.1)},
)
"""


def test_a_family_is_one_file_and_a_line(clone, build, forked, tiny):
    """Seed-OSS, which is none of ours: GGUF, llama.cpp's bytes, verified; ONNX too; the rest refused."""
    folder, checkpoint = clone("a"), tiny("seed_oss")
    families = folder / "scripts/ingot/model/families"
    assert "SeedOssForCausalLM" not in FAMILIES, "take a family that we lack"
    (families / "seed_oss.py").write_text(f'"""Seed-OSS."""\n{SEED_OSS}')
    table = families / "table.py"
    line = "from ingot.model.families.qwen3 import QWEN3\n"
    table.write_text(
        table.read_text()
        .replace(line, f"{line}from ingot.model.families.seed_oss import SEED_OSS\n")
        .replace("_ALL = (\n", "_ALL = (\n    SEED_OSS,\n")
    )
    entry = f"path: {checkpoint}, name: A name, architecture: SeedOssForCausalLM"
    entry = f"{entry}, pre_tokenizer: llama-bpe, tp: [1, 2]"
    (folder / "mine.yaml").write_text(f"models: {{q: {{{entry}, corpus_tokens: 1024}}}}")
    targets = [f"artifacts/q.{kind}.verified.json" for kind in ("gguf", "q8_0.gguf", "onnx")]
    build(folder, "--configfile", "mine.yaml", "--", *targets)
    for target in targets:
        assert json.loads((folder / target).read_bytes())["result"] == "passed"
    done = llama_cpp(forked, [[str(checkpoint), str(folder), "llama-bpe"]], ["f16", "q8_0"])
    assert done.returncode == 0, done.stderr[-3000:]
    for ours, theirs in (("q", "f16"), ("q.q8_0", "q8_0")):
        made = (folder / f"artifacts/{ours}.gguf").read_bytes()
        assert made == (folder / f"{theirs}.gguf").read_bytes(), theirs
    for target, why in (
        (
            "q_tp1.vmfb",
            "sharktank's block has no post_attention_norm, which a SeedOssForCausalLM has",
        ),
        ("q_tp2.irpa", "q, k and v have biases, which .irpa cannot express"),
        ("q_tp1.trtllm-ckpt", "no TensorRT-LLM checkpoint is made of a SeedOssForCausalLM"),
    ):
        said = build(
            folder, "-n", "--configfile", "mine.yaml", "--", f"artifacts/{target}", fails=True
        )
        assert why in said and "; nearest: artifacts/q" in said


def test_a_quantisation_of_libllamas_is_one_row(clone, build, store, told):
    """q2_k_s, which is no row of ours: planned, built from a matrix, held to its limits, in a set."""
    assert "q2_k_s" not in ROWS, "take a type that we lack"
    told(store)
    folder = clone("a")
    table = folder / "scripts/ingot/formats/gguf/quantisations.py"
    row = '    "q2_k_s": Row(21, 3.0, 0.6, by_imatrix=True),\n'
    table.write_text(table.read_text().replace("ROWS = {\n", f"ROWS = {{\n{row}"))
    target = "artifacts/demo.q2_k_s.gguf.verified.json"
    demo = "quants: [q2_k_s]"
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
    records = [*(store / "actions/quantize_gguf").iterdir()]
    assert len(records) == 1, "by itself and in the folder it is one action"
