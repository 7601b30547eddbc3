"""A GGUF file as a set: llama-gguf-split's bytes, a record, and what is refused."""

import json
import subprocess

import pytest

import checkpoints
import faults
from conftest import ROOT, convert

PROMPTS = ROOT / "models/demo/prompts.txt"


@pytest.fixture
def cut(ok, tmp_path):
    """The demo in f32 and its set of files of 6 MB."""
    convert(ok, checkpoints.DEMO, tmp_path / "demo.gguf", "f32")
    words = (
        "--gguf",
        tmp_path / "demo.gguf",
        "--folder",
        tmp_path / "demo.split",
        "--stem",
        "demo",
    )
    ok("convert", "split_gguf.py", *words, "--limit", "6M")
    return tmp_path / "demo.split"


@pytest.fixture
def verify(tmp_path, ok, reading):
    reference = tmp_path / "reference.npz"
    ok(
        "transformers", "generate_reference.py", "--checkpoint", checkpoints.DEMO, "--prompts", PROMPTS,
        *reading(checkpoints.DEMO), "--reference", reference,
    )  # fmt: skip

    def run(with_):
        return with_(
            "llamacpp", "verify_split.py", "--gguf", tmp_path / "demo.gguf", "--split",
            tmp_path / "demo.split", "--reference", reference, "--record", tmp_path / "m.json",
        )  # fmt: skip

    return run


def test_the_set_is_llama_gguf_splits(cut, python, tmp_path):
    tool = python("llamacpp").parents[1] / "llama.cpp/bin/llama-gguf-split"
    words = [tool, "--split-max-size", "6M", tmp_path / "demo.gguf", tmp_path / "theirs"]
    subprocess.run(words, check=True, capture_output=True)
    ours, theirs = sorted(cut.glob("*.gguf")), sorted(tmp_path.glob("theirs-*.gguf"))
    assert len(ours) == len(theirs) == 5
    assert [one.name for one in ours] == [f"demo-0000{n}-of-00005.gguf" for n in range(1, 6)]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(ours, theirs, strict=True))


def test_libllama_gives_the_whole_files_logits_and_the_record_says_so(cut, verify, ok, tmp_path):
    verify(ok)
    checks = json.loads((tmp_path / "m.json").read_text())["checks"]
    assert (checks["files"], checks["tensors"], checks["prompts_equal"]) == (5, 40, 3)
    assert checks["largest_file_bytes"] < 6_000_000 + 60_000  # the metadata are not counted


def test_a_set_that_lacks_a_file_or_holds_another_byte_is_refused(cut, verify, step, tmp_path):
    last = cut / "demo-00005-of-00005.gguf"
    data = last.read_bytes()
    last.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    done = verify(step)
    assert done.returncode == 1 and "its bytes are not those of SHA256SUMS" in done.stderr
    faults.reseal(cut)
    done = verify(step)
    assert done.returncode == 1 and "is not that of" in done.stderr
    last.unlink()
    faults.reseal(cut)
    done = verify(step)
    assert done.returncode == 1 and "expected [0, 4, 40]" in done.stderr
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    "limit, said",
    [("1M", "expected at most 1000000 per file"), ("0", "expected a size such as 50G"),
     ("6m", "expected a size such as 50G")],
)  # fmt: skip
def test_a_limit_below_the_largest_tensor_or_no_size_is_refused(limit, said, ok, step, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "demo.gguf", "f32")
    words = (
        "--gguf",
        tmp_path / "demo.gguf",
        "--folder",
        tmp_path / "demo.split",
        "--stem",
        "demo",
    )
    done = step("convert", "split_gguf.py", *words, "--limit", limit)
    assert done.returncode == 1 and said in done.stderr
    assert not (tmp_path / "demo.split").exists()
