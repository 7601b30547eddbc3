"""A model that Ingot has no table of: llama.cpp's converter writes it, and numbers say if it is right."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from ingot.formats.gguf import converter
from ingot.parity import in_libllama
from ingot.serving.vllm import registry

sys.path.insert(0, str(ROOT / "docs"))
import architectures

TINY = ROOT / "tests/doubles/tiny_models.py"
DEMO = ROOT / "models/demo"


@pytest.fixture
def tiny(interpreter, tmp_path):
    """tiny("qwen3", norm_topk_prob=False) is a checkpoint of that family; the rest changes its config.json
    before the weights are made."""

    def run(kind, **changes):
        words = (
            TINY,
            tmp_path / "tiny",
            DEMO,
            kind,
            *(["--set", json.dumps(changes)] if changes else []),
        )
        done = interpreter("transformers").run(*words)
        made = json.loads(done.stdout)[kind]
        assert "architecture" in made, made
        return tmp_path / "tiny" / kind

    return run


@pytest.fixture
def convert(step, python, tmp_path):
    """convert(checkpoint, "f32") is the real step; the name of the family's own pre-tokenizer is told."""

    def run(checkpoint, dtype="f32", pre="llama-bpe", out="m.gguf"):
        tool = python("llamacpp").parent.parent / "llama.cpp"
        return step(
            "llamacpp-hf", "convert_gguf.py", "--checkpoint", checkpoint, "--converter", tool,
            "--gguf", tmp_path / out, "--dtype", dtype, "--name", "A name", f"--pre-tokenizer={pre}",
        )  # fmt: skip

    return run


@pytest.fixture
def verify(step, tmp_path):
    def run(told, dtype="f32", gguf="m.gguf", floats=()):
        return step(
            "llamacpp", "verify_converted.py", "--gguf", tmp_path / gguf, "--dtype", dtype,
            "--record", tmp_path / f"{gguf}.verified.json", "--floats", *floats, *told,
        )  # fmt: skip

    return run


def last(done):
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_the_architectures_are_those_that_the_converter_says_it_knows(python):
    assert architectures.CONVERTER.read_text() == architectures.converter()
    tool = python("llamacpp").parent.parent / "llama.cpp/convert_hf_to_gguf.py"
    done = subprocess.run(
        [python("llamacpp-hf"), tool, "--print-supported-models"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    texts, _, others = done.stderr.partition("MMPROJ models:")
    assert {*re.findall(r"- (\S+)", texts)} == converter.ARCHITECTURES
    assert {*re.findall(r"- (\S+)", others)} == converter.PROJECTORS


@pytest.mark.slow
def test_the_architectures_that_are_served_are_those_of_vllms_registry(python):
    assert architectures.REGISTRY.read_text() == architectures.registry()
    code = "from vllm import ModelRegistry as r; print(*r.get_supported_archs())"
    done = subprocess.run([python("vllm"), "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.splitlines()[-1].split()} >= registry.ARCHITECTURES


@pytest.fixture
def right(tiny, convert, peers):
    """A tiny Qwen3, converted at float32, and what transformers makes of it."""
    checkpoint = tiny("qwen3")
    assert convert(checkpoint).returncode == 0
    return checkpoint, peers(checkpoint, way="upstream")


@pytest.mark.slow
def test_a_family_without_a_table_is_verified_at_each_type(
    right, convert, verify, ok, forked, python, tmp_path
):
    checkpoint, told = right
    done = verify(told)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "m.gguf.verified.json").read_bytes())
    checks = record["checks"]
    assert record["way"].startswith("upstream: llama.cpp's") and checks["architecture"] == "qwen3"
    assert checks["numbers"]["mean_kl"] < 1e-6 and checks["numbers"]["same_top"] == 1
    assert checks["greedy_equal"] + checks["greedy_ties"] == 24 and checks["chats_equal"] == 20
    # the tool's own command: the same bytes, but for the pre-tokenizer that it is told
    source = python("llamacpp").parent.parent / "llama.cpp"
    given = json.dumps([[str(checkpoint), str(tmp_path), "llama-bpe"]])
    theirs = forked(
        "llamacpp-hf", ROOT / "tests/doubles/oracle.py", source, "A name", "f32", given=given
    )
    assert theirs.returncode == 0, theirs.stderr
    assert (tmp_path / "f32.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    floats = (tmp_path / "m.gguf", tmp_path / "m.gguf.verified.json")
    assert convert(checkpoint, "q8_0", out="8.gguf").returncode == 0
    ok(
        "llamacpp",
        "quantize_float.py",
        "--source",
        floats[0],
        "--quant=q4_0",
        "--gguf",
        tmp_path / "4.gguf",
    )
    for name, dtype in (("8", "q8_0"), ("4", "q4_0")):
        more = ("--limit", "mean_kl=1") if dtype == "q4_0" else ()  # of a random model
        done = verify([*told, *more], dtype, f"{name}.gguf", floats)
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / f"{name}.gguf.verified.json").read_bytes())["checks"]
        assert found["tensor_types"][dtype.upper()] > 20
        assert ("greedy_equal" in found) == (dtype in in_libllama.COMPUTED)
    assert "general.file_type is 2, expected 7 of q8_0" in last(
        verify(told, "q8_0", "4.gguf", floats)
    )


@pytest.mark.slow
def test_no_other_type_is_verified_without_the_float_files_record(right, verify, tmp_path):
    _, told = right
    assert "--floats: missing, expected the float32 file and its record" in last(
        verify(told, "f16")
    )
    shutil.copy(tmp_path / "m.gguf", tmp_path / "f.gguf")
    (tmp_path / "f.json").write_text(json.dumps({"sha256": "0" * 64, "result": "passed"}))
    said = last(verify(told, "f16", "m.gguf", (tmp_path / "f.gguf", tmp_path / "f.json")))
    assert "not of" in said and "verify it again" in said


WRONG = {  # what llama.cpp's converter writes with exit status 0, and is another model
    "qwen3_moe": {"norm_topk_prob": False},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
def test_what_the_converter_writes_wrong_is_refused_by_its_numbers(
    kind, tiny, convert, peers, verify
):
    checkpoint = tiny(kind, **WRONG[kind])
    done = convert(checkpoint)
    assert done.returncode == 0, done.stderr
    said = last(verify(peers(checkpoint, way="upstream")))
    assert re.search("mean_kl is .*llama.cpp computes another model than transformers", said), said


@pytest.mark.slow
def test_what_stops_the_converter_is_one_line(tiny, convert, tmp_path):
    checkpoint = tiny("qwen3")
    said = last(convert(checkpoint, pre=""))
    assert "does not know how its tokenizer splits texts; set pre_tokenizer" in said
    shard = checkpoint / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4000])
    said = last(convert(checkpoint))
    assert f"{checkpoint}: llama.cpp's converter stops (" in said and "its log says more" in said
    assert not (tmp_path / "m.gguf").exists() and not [*tmp_path.glob(".*.partial")]


@pytest.mark.slow
def test_no_code_of_the_checkpoint_runs_and_the_license_is_the_catalogues(
    tiny, step, python, tmp_path
):
    """Of a family whose converter allows it; by hand the whole folder is given, code and card too."""
    checkpoint = tiny("qwen3")
    (checkpoint / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    path = checkpoint / "tokenizer_config.json"
    said = json.loads(path.read_bytes())
    path.write_text(json.dumps(said | {"auto_map": {"AutoTokenizer": ["own.Own", None]}}))
    (checkpoint / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\n---\n")
    tool = python("llamacpp").parent.parent / "llama.cpp"
    done = step(
        "llamacpp-hf", "convert_gguf.py", "--checkpoint", checkpoint, "--converter", tool,
        "--gguf", tmp_path / "m.gguf", "--dtype=f32", "--name=A", "--pre-tokenizer=llama-bpe",
        "--license=apache-2.0",
    )  # fmt: skip
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "m.gguf").read_bytes()
    assert b"general.license" in data and b"apache-2.0" in data and b"base_model" not in data


@pytest.mark.slow
def test_a_window_that_the_file_does_not_say_is_refused_however_long_it_is(
    tiny, convert, peers, verify
):
    """The converter drops Mixtral's; of one longer than all that is run, the numbers say nothing."""
    checkpoint = tiny("mixtral", sliding_window=400)
    assert convert(checkpoint).returncode == 0
    said = last(verify(peers(checkpoint, way="upstream")))
    assert "context_length is 512, expected 400 by transformers" in said


FAULTS = {  # in the file, by the specification alone: behind a key's type so many bytes, and a bit of one
    "a token": ("tokenizer.ggml.tokens", 20, 1),
    "a special token": ("tokenizer.ggml.token_type", 12 + 4 * 1016, 2),
    "the end of an answer": ("tokenizer.ggml.eos_token_id", 0, 1),
    "rope's base": ("qwen3.rope.freq_base", 2, 64),
    "the epsilon": ("qwen3.attention.layer_norm_rms_epsilon", 3, 1),
    "a kv head": ("qwen3.attention.head_count_kv", 0, 3),
    "the template": ("tokenizer.chat_template", 12, 1),
    "the context": ("qwen3.context_length", 0, 1),
}


@pytest.mark.slow
def test_a_file_with_one_fault_is_refused(right, verify, tmp_path):
    _, told = right
    path = tmp_path / "m.gguf"
    whole = path.read_bytes()

    def planted(name):
        data = bytearray(whole)
        if name in FAULTS:
            key, at, bit = FAULTS[name]
            mark = len(key).to_bytes(8, "little") + key.encode()
            data[data.index(mark) + len(mark) + 4 + at] ^= bit
        elif name == "a key's name":
            data[data.index(b"tokenizer.ggml.token_type")] ^= 1
        elif name == "half of it":
            del data[len(data) // 2 :]
        else:  # in the last tensor, a norm: one value's sign
            data[-1] ^= 128
        path.write_bytes(data)

    passed = []
    for name in (*FAULTS, "half of it", "a sign in a norm", "a key's name"):
        planted(name)
        done = verify(told)
        if done.returncode == 0:
            passed.append(name)
        else:
            assert "m.gguf: " in last(done), name
    assert passed == []
    path.write_bytes(whole)
    assert verify(told).returncode == 0
