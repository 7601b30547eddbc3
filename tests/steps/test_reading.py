"""config.json in many spellings: transformers' numbers, ours and llama.cpp's are equal, or refused."""

import importlib
import json
import shutil
import subprocess

import numpy as np
import pytest

import checkpoints
from conftest import FEW, ROOT, llama_cpp
from ingot.base.refused import Refused
from ingot.model.config import read_config
from ingot.model.features import ALL
from ingot.parity import reading as reading_of

pytestmark = pytest.mark.slow

GONE = "gone"  # a field that is not there
L3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", **L3}
PLAIN = {"rope_type": "default", "rope_theta": 500000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
EQUAL, OURS, THEIRS, BOTH, DIFFER = (
    "equal",
    "refused by Ingot",
    "refused by transformers",
    "refused",
    "differ",
)
SPELLINGS = [  # changes of a Llama 3's config.json, and what becomes of it
    ({}, EQUAL),
    ({"rope_theta": GONE}, EQUAL),
    ({"rope_theta": None}, THEIRS),
    ({"rope_scaling": None}, EQUAL),
    ({"rope_scaling": {}}, EQUAL),
    ({"rope_theta": GONE, "rope_parameters": PLAIN}, EQUAL),
    ({"rope_parameters": PLAIN}, EQUAL),
    ({"rope_scaling": LLAMA3}, EQUAL),
    ({"rope_scaling": {"type": "llama3", **L3}}, EQUAL),
    ({"rope_scaling": {"type": "llama3", "rope_type": "llama3", **L3}}, EQUAL),
    ({"rope_scaling": {"type": "linear", "rope_type": "llama3", **L3}}, OURS),
    ({"rope_parameters": LLAMA3}, EQUAL),
    ({"rope_parameters": {**PLAIN, **LLAMA3}, "rope_scaling": {"type": "llama3", **L3}}, EQUAL),
    ({"rope_parameters": LLAMA3, "rope_scaling": {"type": "linear", "factor": 2.0}}, OURS),
    ({"rope_parameters": PLAIN, "rope_scaling": LLAMA3}, OURS),
    ({"rope_parameters": {**PLAIN, "rope_theta": 10000.0}}, OURS),
    ({"rope_scaling": {"rope_type": "llama3", "rope_theta": 1e6, **L3}}, OURS),
    ({"rope_theta": GONE, "rope_scaling": {"rope_type": "llama3", "rope_theta": 1e6, **L3}}, EQUAL),
    ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, OURS),
    ({"rope_parameters": {"full_attention": PLAIN}}, OURS),
    ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, OURS),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, OURS),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, EQUAL),
    ({"rope_theta": GONE, "rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 2.0}}, EQUAL),
    ({"rope_scaling": YARN}, EQUAL),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 64}, EQUAL),
    ({"rope_scaling": YARN, "original_max_position_embeddings": 128}, OURS),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, EQUAL),
    ({"rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}}, EQUAL),
    ({"rope_scaling": {**YARN, "attention_factor": 1.1386294361119891}}, EQUAL),
    ({"head_dim": None}, EQUAL),
    ({"num_key_value_heads": None}, EQUAL),
    ({"num_key_value_heads": GONE}, EQUAL),
    ({"tie_word_embeddings": None}, THEIRS),
    ({"tie_word_embeddings": True}, EQUAL),
    ({"attention_bias": None}, THEIRS),
    ({"attention_bias": True, "mlp_bias": True}, EQUAL),
    ({"hidden_act": None}, BOTH),
    ({"hidden_act": "swish"}, EQUAL),
    ({"sliding_window": 16}, EQUAL),
    ({"layer_types": ["sliding_attention"] * 3, "sliding_window": 16}, OURS),
    ({"model_type": "mistral"}, OURS),
    ({"model_type": GONE}, THEIRS),
    ({"rms_norm_eps": "1e-5"}, BOTH),
    ({"max_position_embeddings": GONE}, OURS),
    ({**MISTRAL}, EQUAL),
    ({**MISTRAL, "max_position_embeddings": 8192}, OURS),
    ({**MISTRAL, "max_position_embeddings": 8192, "sliding_window": None}, EQUAL),
    ({**MISTRAL, "sliding_window": 64}, EQUAL),
    ({**MISTRAL, "sliding_window": 0}, OURS),
    ({**MISTRAL, "sliding_window": 64, "use_sliding_window": False}, EQUAL),
    ({**MISTRAL, "sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, BOTH),
]  # fmt: skip
HEADER = """
import json, sys
from gguf import GGUFReader
for path in sys.argv[1:]:
    reader = GGUFReader(path)
    pairs = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    ropes = [t.data.tolist() for t in reader.tensors if t.name == "rope_freqs.weight"]
    print(json.dumps([pairs, ropes]))
"""


@pytest.fixture(scope="module")
def reader():
    """The module of read_config.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("read_config")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = [tmp_path_factory.mktemp("spellings") / f"{n:02d}" for n in range(len(SPELLINGS))]
    for folder, (changes, _) in zip(made, SPELLINGS, strict=True):
        folder.mkdir()
        config = {**checkpoints.llama_config(rope_theta=500000.0), **changes}
        config = {name: value for name, value in config.items() if value != GONE}
        (folder / "config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def theirs(folders, python):
    """Of each spelling transformers' numbers, or why it cannot load the model."""
    done = subprocess.run(
        [python("transformers"), ROOT / "tests/doubles/readings.py", *folders],
        env={"PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcome(reader, path, theirs):
    try:
        found = reader.ours(read_config(path, can=ALL))
    except Refused:
        return OURS if isinstance(theirs, dict) else BOTH
    if not isinstance(theirs, dict):
        return THEIRS
    try:
        reader.compare(path, found, theirs)
    except Refused as reason:
        return f"{DIFFER}: {reason}"
    return EQUAL


def test_each_spelling_means_the_same_to_transformers_or_is_refused(reader, folders, theirs):
    found = [
        outcome(reader, f / "config.json", one) for f, one in zip(folders, theirs, strict=True)
    ]
    wrong = [
        (changes, said, expected)
        for (changes, expected), said in zip(SPELLINGS, found, strict=True)
        if said != expected
    ]
    assert wrong == []
    assert found.count(EQUAL) >= 25 and len(found) - found.count(EQUAL) >= 20


def test_llama_cpp_reads_what_we_write_of_each_spelling_that_is_taken(forked, python, ok, tmp_path):
    taken, ours, asked = [], [], []
    for n, (changes, said) in enumerate(SPELLINGS):
        if said != EQUAL:
            continue
        folder = tmp_path / f"{n:02d}"
        folder.mkdir()
        config = {**checkpoints.llama_config(), **changes}
        config = {name: value for name, value in config.items() if value != GONE}
        (folder / "config.json").write_text(json.dumps(config))
        checkpoints.tokenizer_of_demo(folder)
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        checkpoints.write_weights(folder, {**config, "num_key_value_heads": heads}, "F16", "F32", 1)
        taken.append(changes)
        ours.append(folder / "ours.gguf")
        asked.append([str(folder), str(folder), "llama-bpe"])
        ok(
            "convert", "safetensors_to_gguf.py", "--checkpoint", folder, "--gguf", ours[-1],
            "--dtype", "f16", "--name", "A name", "--pre-tokenizer", "llama-bpe",
        )  # fmt: skip
    done = llama_cpp(forked, asked, ["f16"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count(" to f16: KeyError('original_max_position_embeddings')") == 1
    pairs = [(path, path.with_name("f16.gguf")) for path in ours]
    both = [n for n, (_, other) in enumerate(pairs) if other.exists()]
    assert (
        len(both) == len(taken) - 1
    )  # YaRN without its original context, which transformers takes
    files = [path for n in both for path in pairs[n]]
    lines = subprocess.run(
        [python("llamacpp"), "-c", HEADER, *files], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    for n, mine, other in zip(both, found[::2], found[1::2], strict=True):
        if (
            "sliding_window" in taken[n] and "model_type" in taken[n]
        ):  # llama.cpp drops it: docs/gguf.md
            del mine[0]["llama.context_length"], other[0]["llama.context_length"]
        sizes = {f"llama.attention.{word}_length" for word in ("key", "value")} - set(other[0])
        for name in sizes:  # where config.json says no head_dim; llama.cpp takes hidden / heads
            assert mine[0].pop(name) == 256 // 8
        assert mine[0] == other[0] and np.allclose(mine[1], other[1], rtol=1e-6), taken[n]


def test_what_transformers_cannot_load_ends_in_a_line_of_its_own_words(theirs):
    said = [one for one in theirs if isinstance(one, str)]
    assert len(said) >= 5 and all("\n" not in one and "cannot load it (" in one for one in said)
    assert any("'rms_norm_eps' expected float, got str" in one for one in said)


def test_a_reading_is_held_to_its_form(theirs, tmp_path):
    path = tmp_path / "reading.json"
    path.write_text(json.dumps(theirs[0]))
    assert reading_of.read(path) == theirs[0]
    path.write_text(json.dumps({**theirs[0], "layers": "three"}))
    with pytest.raises(Refused, match="layers is 'three', expected a whole number"):
        reading_of.read(path)


def test_where_the_readings_differ_the_step_names_both(reader, folders, theirs):
    config = read_config(folders[0] / "config.json", can=ALL)
    for name, value in (("layers", 2), ("rms_eps", 1e-6), ("frequencies", [1.0, 0.5])):
        other = {**theirs[0], name: value}
        with pytest.raises(
            Refused, match=rf"({name}|rope's frequency \d+ of \d+) is .* to transformers 5\."
        ):
            reader.compare(folders[0] / "config.json", reader.ours(config), other)


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_transformers_own_loader(
    run_reference, tmp_path
):
    folder = checkpoints.llama31(tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    done = run_reference(folder)
    assert done.returncode == 1 and "bias is missing, by transformers' own loader" in done.stderr


def test_the_spelling_of_transformers_5_gives_the_same_reference(run_reference, tmp_path):
    old = checkpoints.llama31(tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    new = tmp_path / "new"
    shutil.copytree(old, new)
    rope = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    (new / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    made = []
    for folder in (old, new):
        done = run_reference(folder)
        assert done.returncode == 0, done.stderr
        made.append(dict(np.load(tmp_path / f"{folder.name}.npz")))
    assert all(np.array_equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.parametrize(
    "kind", ["demo", "gemma3_text", "gpt_oss", "deepseek_v3", "phi3", "recurrent_gemma", "mamba"]
)  # the last three are read alone
def test_a_prompt_in_a_batch_is_answered_as_it_is_alone(
    kind, run_reference, tiny, forked, tmp_path
):
    folder = checkpoints.DEMO if kind == "demo" else tiny(kind)
    if kind == "phi3":  # rope of all in a batch goes by its longest: of 80 and 99 tokens, for one
        config, most = (
            json.loads((folder / "config.json").read_text()),
            "original_max_position_embeddings",
        )
        config[most] = 90
        config["rope_parameters"] = {
            **PLAIN, "rope_type": "longrope", most: 90, "short_factor": [1.0] * 16,
            "long_factor": [4.0] * 16,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
    done = run_reference(folder, "--steps", FEW, way="own" if kind == "demo" else "upstream")
    assert done.returncode == 0, done.stderr
    made = tmp_path / f"{folder.name}.npz"
    alone = forked("transformers", ROOT / "tests/doubles/answers_alone.py", folder, made)
    assert alone.returncode == 0, alone.stderr
    assert float(alone.stdout) < 1e-4


@pytest.fixture
def run_reference(reading, tmp_path, forked):
    """run_reference(folder) is the real step's end for that checkpoint."""

    def run(folder, *words, way="own"):
        files = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        found = [folder / name for name in files if (folder / name).exists()]
        return forked(
            "transformers", ROOT / "scripts/generate_reference.py", *reading(folder, way), *words,
            "--reference", tmp_path / f"{folder.name}.npz",
            "--checkpoint", *found, *sorted(folder.glob("model*")),
        )  # fmt: skip

    return run
