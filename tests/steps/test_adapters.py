"""Adapters that PEFT saved, merged in the stream: beside what PEFT merges, and by their verifiers."""

import json
import shutil

import numpy as np
import pytest

from conftest import ROOT, convert

DEMO = ROOT / "models/demo"
SHAPES = {
    "q and v": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "all linear": {"r": 8, "lora_alpha": 12, "target_modules": "all-linear"},
    "saved": {
        "r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": ["embed_tokens", "lm_head"],
    },
    "rslora": {"r": 8, "lora_alpha": 16, "use_rslora": True, "target_modules": ["q_proj", "o_proj"]},
    "patterns": {
        "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 4}, "alpha_pattern": {"q_proj": 5, "layers.1.mlp.down_proj": 3},
    },
    "embedding": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "embed_tokens", "lm_head"]},
}  # fmt: skip
READ = """
import json, sys
import gguf, numpy as np
for path in sys.argv[1:]:
    tensors = gguf.GGUFReader(path).tensors
    np.savez(path + ".npz", **{t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in tensors})
"""


@pytest.fixture
def trained(interpreter, tmp_path):
    """trained("rslora") are the base's files with such an adapter's, and what PEFT merged, as folders."""

    def run(kind):
        folder = tmp_path / kind.replace(" ", "-")
        double = ROOT / "tests/doubles/adapters.py"
        done = interpreter("transformers").run(double, DEMO, folder, json.dumps(SHAPES[kind]))
        assert done.returncode == 0, done.stderr[-2000:]
        both, merged = folder / "both", folder / "merged"
        shutil.copytree(DEMO, both)
        for path in (folder / "adapter").glob("adapter_*"):
            shutil.copy(path, both)
        for name in (
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
        ):
            shutil.copy(DEMO / name, merged)
        return both, merged

    return run


def values(forked, *paths):
    script = paths[0].parent / "read.py"
    script.write_text(READ)
    done = forked("llamacpp", script, *paths)
    assert done.returncode == 0, done.stderr
    return [np.load(f"{path}.npz") for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_what_peft_merges_is_merged_in_the_stream(trained, ok, forked, tmp_path, kind):
    both, merged = trained(kind)
    convert(ok, both, tmp_path / "ours.gguf", "bf16")
    convert(ok, merged, tmp_path / "theirs.gguf", "bf16")
    convert(ok, DEMO, tmp_path / "base.gguf", "bf16")
    ours, theirs, base = values(
        forked, *(tmp_path / f"{n}.gguf" for n in ("ours", "theirs", "base"))
    )
    changed = differ = 0
    for name in ours.files:
        one, other, before = ours[name], theirs[name], base[name]
        if kind == "embedding" and name == "token_embd.weight":
            # PEFT rounds what it adds to an embedding to bfloat16 first, and the sum again
            rounded = np.abs(other) + np.abs(other - before)
            assert (np.abs(one - other) <= 2.0**-7 * rounded).all()
            continue
        changed += int((one != before).sum())
        differ += int((one != other).sum())
        # a unit of the last place; float32 itself is off by more where base and change cancel
        unit = 2.0**-7 * np.abs(one) + 2.0**-21 * np.abs(before)
        assert (np.abs(one - other) <= unit).all(), name
    assert changed > 100_000 and differ < 1e-3 * changed


@pytest.mark.slow
def test_a_merged_file_is_verified_and_a_wrong_merge_refused(trained, ok, step, peers, tmp_path):
    """By PEFT's tokens and distributions, and value by value; each wrong maker is a field misread."""
    both, _ = trained("patterns")
    told = peers(both)

    def verified(run, dtype):
        return run(
            "llamacpp", "verify_gguf.py", "--checkpoint", both, "--gguf", tmp_path / "m.gguf",
            "--dtype", dtype, "--name", "A name", "--pre-tokenizer", "llama-bpe",
            "--record", tmp_path / "m.json", *told,
        )  # fmt: skip

    convert(ok, both, tmp_path / "m.gguf", "bf16")
    verified(ok, "bf16")
    checks = json.loads((tmp_path / "m.json").read_bytes())["checks"]
    assert checks["tensors_equal"] == checks["tensors"] == 40
    assert checks["greedy_equal"] + checks["greedy_ties"] == checks["prompts"]
    said = json.loads((both / "adapter_config.json").read_bytes())
    for change in ({"alpha_pattern": {}}, {"use_rslora": True}, {"lora_alpha": 32}):
        wrong = tmp_path / "wrong"
        shutil.copytree(both, wrong)
        (wrong / "adapter_config.json").write_text(json.dumps({**said, **change}))
        convert(ok, wrong, tmp_path / "m.gguf", "bf16")
        done = verified(step, "bf16")
        assert "is not the checkpoint's in BF16" in done.stderr, (change, done.stderr)
        shutil.rmtree(wrong)
    convert(ok, DEMO, tmp_path / "m.gguf", "bf16")  # the base alone
    assert "is not the checkpoint's in BF16" in verified(step, "bf16").stderr
