"""libllama by ctypes: what it is asked by records, on a file of the demo."""

import subprocess

import pytest

import checkpoints
from conftest import ROOT, convert
from ingot.formats.gguf import libllama, structures

ASK = f"""
import sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from {libllama.__name__} import Llama, version
with Llama(Path(sys.argv[1]), 64) as model:
    ids = model.ids("Name the capital of France.<|eot_id|>")
    again = [model.logits(ids).argmax(axis=-1).tolist() for _ in range(2)]
    assert again[0] == again[1], "the cache is emptied between"
    print("asked:", model.tokens, model.trained_context, model.start, ids[-1], model.text_of(again[0][-1]),
          "threads", model.threads)
    print("asked:", repr(model.chat([{{"role": "user", "content": " hi "}}], 0)))
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
    assert numbers == "asked: 1024 512 [1016] 1020 P threads 1"
    assert chat == "asked: " + repr(
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_file_that_libllama_cannot_load_is_one_line(ask, tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"<html>")
    done = ask(tmp_path / "no.gguf")
    assert done.returncode == 1
    assert "no.gguf: libllama cannot load it, expected a whole model" in done.stderr


ABORT = f"""
import sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from {libllama.__name__} import library
library().ggml_abort(b"/tmp/x/llama.cpp/src/llama-graph.cpp", 7, b"GGML_ASSERT(%s) failed", b"n > 0")
print("asked: goes on")
"""


def test_an_assertion_of_llama_cpp_is_one_line_and_no_signal(python):
    words = [str(python("llamacpp")), "-c", ABORT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "goes on" not in done.stdout
    assert done.stderr.splitlines() == [
        "llama.cpp stops (GGML_ASSERT(n > 0) failed, src/llama-graph.cpp:7), expected a model that "
        "it runs; its log says more"
    ]


LAYOUT = f"""
import ctypes, sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from {libllama.__name__} import library
from {structures.__name__} import Tensor
lib = library()
context, quantize = lib.llama_context_default_params(), lib.llama_model_quantize_default_params()
model = lib.llama_model_default_params()
print("asked:", lib.ggml_tensor_overhead() - ctypes.sizeof(Tensor))
print("asked:", context.n_ctx, context.type_k, context.type_v, context.offload_kqv, context.n_samplers)
print("asked:", quantize.ftype, quantize.quantize_output_tensor, quantize.dry_run, quantize.max_buf_size)
print("asked:", model.n_gpu_layers, model.vocab_only, model.use_extra_bufts, model.load_mtp)
"""


def test_the_structures_lie_as_libllama_has_them(python):
    """Its own defaults, read through ours from the first field to the last; a ggml_object has 32 bytes."""
    words = [str(python("llamacpp")), "-c", LAYOUT]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("asked:")]
    print(lines)
    assert lines == [
        "asked: 32",
        "asked: 512 1 1 True 0",
        f"asked: 7 True False {8 << 30}",
        "asked: -1 False True False",
    ]
