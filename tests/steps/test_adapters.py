"""Adapters that PEFT saved, merged in the stream: beside what PEFT merges, and by their verifiers."""

import json
import shutil

import numpy as np
import pytest

from conftest import ROOT, convert
from ingot.driver.toolchains import toolchains
from ingot.model.checkpoint import targeted

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


TARGETED = """
import json, sys
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
cases, names = json.loads(sys.argv[1])
print(json.dumps([[bool(check_target_module_exists(LoraConfig(**one), name)) for name in names]
                  for one in cases]))
"""


@pytest.mark.slow
def test_which_modules_an_adapter_is_for_is_read_as_peft_reads_it(interpreter, tmp_path):
    names = [
        f"model.layers.{n}.{one}" for n in (0, 1, 10) for one in ("mlp.up_proj", "self_attn.q_proj")
    ]
    names += ["model.layers.1.mlp.experts.0.up_proj", "lm_head", "model.embed_tokens", "up_proj"]
    both = {"target_modules": ["q_proj", "up_proj"]}
    cases = [
        both, {"target_modules": ["proj"]}, {"target_modules": []}, {"target_modules": names[:3]},
        {"target_modules": r".*\.(q|k)_proj"}, {"target_modules": "q_proj"},
        {**both, "exclude_modules": ["mlp.up_proj"]}, {**both, "exclude_modules": r".*\.1\..*"},
        {**both, "modules_to_save": ["self_attn"]}, {**both, "layers_to_transform": 1},
        {**both, "layers_to_transform": []}, {**both, "layers_to_transform": [0, 10]},
        {**both, "layers_to_transform": [0], "layers_pattern": "experts"},
        {**both, "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
        {"target_modules": [*both["target_modules"], names[0]], "layers_to_transform": [1]},
    ]  # fmt: skip
    (tmp_path / "ask.py").write_text(TARGETED)
    done = interpreter("transformers").run(tmp_path / "ask.py", json.dumps([cases, names]))
    assert done.returncode == 0, done.stderr[-2000:]
    for case, theirs in zip(cases, json.loads(done.stdout), strict=True):
        assert [targeted.is_targeted(case, name) for name in names] == theirs, case


def lora_gguf(run, both, path):
    files = (both / "config.json", *sorted(both.glob("adapter_*")))
    words = ("--checkpoint", *files, "--lora", path, "--name", "A name")
    return run("convert", "lora_to_gguf.py", *words)


@pytest.mark.slow
def test_llama_cpps_own_format_is_its_converters_byte_for_byte(trained, ok, step, forked, tmp_path):
    both, _ = trained("all linear")
    lora_gguf(ok, both, tmp_path / "ours.gguf")
    place = toolchains.build(ROOT, "llamacpp")
    (archive,) = (place / "source").glob("*.tar.gz")
    theirs = tmp_path / "theirs.gguf"
    (both / "README.md").unlink(missing_ok=True)  # a model card names more
    oracle = ROOT / "tests/doubles/oracle_lora.py"
    done = forked("iree", oracle, place / "llama.cpp", archive, "A name", DEMO, both, theirs)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "ours.gguf").read_bytes() == theirs.read_bytes()
    for kind in ("saved", "embedding"):
        done = lora_gguf(step, trained(kind)[0], tmp_path / "m.gguf")
        assert "or an embedding, which llama.cpp's format cannot say" in done.stderr
    done = step(
        "convert", "lora_to_gguf.py", "--checkpoint", DEMO, "--lora", "x", "--name", "A name"
    )
    assert "no adapter_config.json among its files" in done.stderr


@pytest.mark.slow
def test_an_adapter_in_gguf_is_verified_on_its_bases_file(trained, ok, step, peers, tmp_path):
    """With a pattern's scales, which llama.cpp's own converter leaves out: its file is refused."""
    both, _ = trained("patterns")
    told = peers(both)[:6]  # not the reading
    convert(ok, DEMO, tmp_path / "base.gguf", "f16")
    lora = tmp_path / "m.lora.gguf"
    lora_gguf(ok, both, lora)

    def verified(run):
        return run(
            "llamacpp", "verify_lora.py", "--checkpoint", both, "--lora", lora, "--gguf",
            tmp_path / "base.gguf", "--dtype", "f16", "--name", "A name", "--record", tmp_path / "m.json",
            *told,
        )  # fmt: skip

    verified(ok)
    checks = json.loads((tmp_path / "m.json").read_bytes())["checks"]
    assert checks["tensors"] == 16 and checks["numbers"]["mean_kl"] < 1e-4
    assert checks["greedy_equal"] + checks["greedy_ties"] == checks["prompts"]
    said = json.loads((both / "adapter_config.json").read_bytes())
    for change, refusal in (
        ({"alpha_pattern": {}}, "is not what"),
        ({"lora_alpha": 17, "alpha_pattern": {}}, "adapter.lora.alpha is 17.0, expected 16"),
    ):
        wrong = tmp_path / "wrong"
        shutil.copytree(both, wrong)
        (wrong / "adapter_config.json").write_text(json.dumps({**said, **change}))
        lora_gguf(ok, wrong, lora)
        assert refusal in verified(step).stderr, change
        shutil.rmtree(wrong)
