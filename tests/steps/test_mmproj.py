"""The part of a model for images: llama.cpp's library sees with it what transformers sees."""

import json
import subprocess

import numpy as np
import pytest

import checkpoints
import faults
from conftest import ROOT, convert
from ingot.formats.gguf import eyes

pytestmark = pytest.mark.slow
TINY, DEMO = ROOT / "tests/doubles/tiny_models.py", ROOT / "models/demo"
NAMES = ("--name", "A name", "--pre-tokenizer=llama-bpe")


MARKER = f"""
import ctypes, sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from ingot.formats.gguf.libllama import library
library().mtmd_default_marker.restype = ctypes.c_char_p
print("asked:", library().mtmd_default_marker().decode())
"""


def test_a_picture_s_place_is_marked_as_the_library_has_it(python):
    words = [str(python("llamacpp")), "-c", MARKER]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"asked: {eyes.MARKER}" in done.stdout.splitlines()


@pytest.fixture
def seeing(ok, interpreter, python, tmp_path):
    """seeing("gemma3") is a tiny checkpoint of that family, `change`d, with its GGUF files beside."""

    def run(kind, change=lambda checkpoint: None):
        done = interpreter("transformers").run(TINY, tmp_path, DEMO, kind)
        assert "architecture" in json.loads(done.stdout)[kind], done.stdout
        change(tmp_path / kind)
        tool = ("--converter", python("llamacpp").parent.parent / "llama.cpp")
        words = ("llamacpp-hf", "convert_gguf.py", "--checkpoint", tmp_path / kind, *tool, *NAMES)
        ok(*words, "--dtype=f32", "--gguf", tmp_path / "m.f32.gguf")
        ok(*words, "--dtype=f16", "--gguf", tmp_path / "m.mmproj.gguf", "--mmproj")
        return tmp_path / kind

    return run


@pytest.fixture
def seen(step, tmp_path):
    """What llama.cpp sees by an mmproj file."""

    def run(mmproj="m.mmproj.gguf", gguf="m.f32.gguf"):
        return step(
            "llamacpp", "see_images.py", "--mmproj", tmp_path / mmproj, "--gguf", tmp_path / gguf,
            "--seen", tmp_path / "seen.npz",
        )  # fmt: skip

    return run


@pytest.fixture
def verify(step, tmp_path):
    def run(checkpoint, mmproj="m.mmproj.gguf"):
        return step(
            "transformers", "verify_mmproj.py", "--checkpoint", checkpoint, "--mmproj",
            tmp_path / mmproj, "--seen", tmp_path / "seen.npz", "--record", tmp_path / "record.json",
        )  # fmt: skip

    return run


def last(done):
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("kind, size, tokens", [("gemma3", 112, 16), ("qwen3_vl", 112, 16)])
def test_llama_cpp_sees_what_transformers_sees(kind, size, tokens, seeing, seen, verify, tmp_path):
    checkpoint = seeing(kind)
    assert seen().returncode == 0
    done = verify(checkpoint)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_bytes())
    checks = record["checks"]
    assert record["way"].endswith("--mmproj") and checks["picture"] == [size, size]
    assert checks["picture_tokens"] == tokens and checks["numbers"]["same_top"] == 1
    assert checks["numbers"]["mean_kl"] < 1e-5 < 1e-2 < checks["negative_kl"]


def test_a_wrong_part_is_refused_and_one_of_another_model_cannot_be_loaded(
    ok, seeing, seen, verify, tmp_path
):
    checkpoint = seeing("gemma3")
    whole = bytearray((tmp_path / "m.mmproj.gguf").read_bytes())
    start = faults.gguf_data_start(bytes(whole))
    signs = np.frombuffer(whole, np.uint8)[start + (len(whole) - start) // 2 :]
    signs[1::64] ^= 0x80  # of one value in 32
    (tmp_path / "odd.mmproj.gguf").write_bytes(whole)
    assert seen("odd.mmproj.gguf").returncode == 0
    said = last(verify(checkpoint, "odd.mmproj.gguf"))
    assert "odd.mmproj.gguf: mean_kl is " in said and "expected at most 0.0001" in said
    said = last(verify(checkpoint))
    assert "seen.npz: of another mmproj file, expected what was seen by" in said
    convert(ok, checkpoints.DEMO, tmp_path / "other.f32.gguf", "f32")
    said = last(seen(gguf="other.f32.gguf"))
    assert "cannot load it beside" in said and "expected the part of the same model" in said
    said = last(seen("m.f32.gguf"))
    assert "clip.vision.image_size is missing, expected the part of a model that sees" in said


def blind(checkpoint):
    """The projection becomes nought, by an editor that knows only safetensors' specification."""
    place = checkpoint / "model.safetensors"
    data = bytearray(place.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    name = next(one for one in header if one.endswith("mm_input_projection_weight"))
    first, end = header[name]["data_offsets"]
    data[start + first : start + end] = bytes(end - first)
    place.write_bytes(data)


def test_of_a_model_that_sees_nothing_nothing_is_shown(seeing, seen, verify):
    checkpoint = seeing("gemma3", blind)
    assert seen().returncode == 0
    said = last(verify(checkpoint))
    assert "the negative is 0 nats away, expected a model that sees a difference" in said
