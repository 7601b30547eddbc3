"""libllama by ctypes: what it is asked by records, on a file of the demo."""

import subprocess

import pytest

import checkpoints
from conftest import ROOT, convert
from ingot.llamacpp import libllama

ASK = f"""
import sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from {libllama.__name__} import Llama, version
with Llama(Path(sys.argv[1]), 64) as model:
    ids = model.ids("Name the capital of France.<|eot_id|>")
    again = [model.logits(ids).argmax(axis=-1).tolist() for _ in range(2)]
    assert again[0] == again[1], "the cache is emptied between"
    print("asked:", model.tokens, model.trained_context, model.start, ids[-1], model.text_of(again[0][-1]))
    print("asked:", repr(model.chat([{{"role": "user", "content": " hi "}}])))
"""


@pytest.fixture
def ask(python):
    def run(gguf):
        words = [str(python("llamacpp")), "-c", ASK, str(gguf)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    return run


def test_tokens_logits_and_a_dialogue(ask, ok, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "demo.gguf", "f32")
    done = ask(tmp_path / "demo.gguf")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # libllama's log is there too
    numbers, chat = (line for line in lines if line.startswith("asked:"))
    assert numbers == "asked: 1024 512 [1016] 1020 P"
    assert chat == "asked: " + repr(
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_file_that_libllama_cannot_load_is_one_line(ask, tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"<html>")
    done = ask(tmp_path / "no.gguf")
    assert done.returncode == 1
    assert "no.gguf: libllama cannot load it, expected a whole model" in done.stderr
