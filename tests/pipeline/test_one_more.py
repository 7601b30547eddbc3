"""What is to be added is one thing in one place: a family a file and its line, a quantisation a row."""

import json

from conftest import llama_cpp
from ingot.formats.gguf.quantisations import ROWS

LINES = (  # of the table, those of the family
    ("from ingot.model.families.seed_oss import SEED_OSS\n", ""),
    (" SEED_OSS,", ""),
)


def test_a_family_is_one_file_and_a_line(clone, build, forked, tiny):
    """Seed-OSS, of which a clone is told: GGUF, llama.cpp's bytes, verified; ONNX too; the rest refused."""
    folder, checkpoint = clone("a"), tiny("seed_oss")
    families = folder / "scripts/ingot/model/families"
    file, table = families / "seed_oss.py", families / "table.py"
    added, whole = file.read_text(), table.read_text()
    file.unlink()
    for line, none in LINES:
        assert whole.count(line) == 1
        table.write_text(table.read_text().replace(line, none))
    assert not any("seed_oss" in one.read_text() for one in families.glob("*.py"))
    entry = f"path: {checkpoint}, name: A name, architecture: SeedOssForCausalLM"
    entry = f"{entry}, pre_tokenizer: llama-bpe, tp: [1, 2]"
    (folder / "mine.yaml").write_text(f"models: {{q: {{{entry}, corpus_tokens: 1024}}}}")
    said = build(folder, "-n", "--configfile", "mine.yaml", "--", "artifacts/q.irpa", fails=True)
    assert "is of a family that Ingot has no table of, which .irpa cannot express" in said
    file.write_text(added)
    table.write_text(whole)
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
