"""libllama's types, from the checkpoint: byte for byte llama-quantize's, and their records."""

import json
import subprocess

import numpy as np
import pytest

import checkpoints
import families
from conftest import ROOT, convert
from ingot.formats.gguf.file import read
from ingot.formats.gguf.quantisations import ROWS
from ingot.parity.hard_texts import STRINGS

pytestmark = pytest.mark.slow
PROMPTS = ROOT / "models/demo/prompts.txt"
HEADER = ("--name", "A name", "--pre-tokenizer", "llama-bpe")


@pytest.fixture
def tool(python):
    """tool("llama-quantize", ...) runs llama.cpp's own."""
    folder = python("llamacpp").parents[1] / "llama.cpp/bin"

    def run(name, *words, cwd=None):
        done = subprocess.run(
            [folder / name, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]

    return run


def quantize(run, checkpoint, *words):
    return run(
        "llamacpp", "quantize_gguf.py", "--checkpoint", checkpoint, *HEADER, "--quant", *words
    )


def test_every_type_of_one_read_is_what_llama_quantize_writes(ok, tool, tmp_path):
    """The demo has shapes that fall back: rows of 256 and 512, tied to nothing, 4 layers."""
    convert(ok, checkpoints.DEMO, tmp_path / "f32.gguf", "f32")
    types = [name for name, row in ROWS.items() if not row.by_imatrix]
    quantize(ok, checkpoints.DEMO, *types, "--folder", tmp_path / "demo.quants")
    for kind in types:
        tool("llama-quantize", tmp_path / "f32.gguf", tmp_path / "theirs", kind)
        ours = tmp_path / f"demo.quants/model.{kind}.gguf"
        assert ours.read_bytes() == (tmp_path / "theirs").read_bytes(), kind
    lines = (tmp_path / "demo.quants/SHA256SUMS").read_text().splitlines()
    assert len(lines) == len(types)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen3-MoE",
        "Mixtral",
        "SmolLM3",
        "Granite",
        "OLMo 2",
        "Gemma 2",
        "Gemma 3",
        "Phi-3, LongRoPE",
        "Seed-OSS",
        "gpt-oss, bfloat16 experts, transformers 5",
        "DeepSeek-V3, FP8",
        "DeepSeek-V2-Lite",
    ],
)
def test_each_family_has_llama_quantizes_bytes(name, ok, tool, pieces, tmp_path):
    checkpoint = checkpoints.variant(tmp_path / "m", name, tokenizer=pieces)
    pre = "default" if name in families.PIECED else "llama-bpe"
    convert(ok, checkpoint, tmp_path / "f32.gguf", "f32", pre)
    types = ("q4_k_m", "q6_k", "iq4_xs")
    header = (*HEADER[:2], "--pre-tokenizer", pre)
    words = (
        "--checkpoint",
        checkpoint,
        *header,
        "--quant",
        *types,
        "--folder",
        tmp_path / "m.quants",
    )
    ok("llamacpp", "quantize_gguf.py", *words)
    for kind in types:
        tool("llama-quantize", tmp_path / "f32.gguf", tmp_path / "theirs", kind)
        ours = tmp_path / f"m.quants/model.{kind}.gguf"
        assert ours.read_bytes() == (tmp_path / "theirs").read_bytes(), kind


def test_one_type_alone_has_the_same_bytes_and_its_size_is_foreseen(ok, tmp_path):
    quantize(ok, checkpoints.DEMO, "q4_k_m", "q6_k", "--folder", tmp_path / "demo.quants")
    quantize(ok, checkpoints.DEMO, "q4_k_m", "--gguf", tmp_path / "one.gguf")
    both = (tmp_path / "one.gguf", tmp_path / "demo.quants/model.q4_k_m.gguf")
    assert both[0].read_bytes() == both[1].read_bytes()
    assert both[0].stat().st_size == pytest.approx(5771776 * ROWS["q4_k_m"].bits / 8, rel=0.1)


def test_tensors_that_get_another_type_for_their_rows_are_counted(ok, tmp_path):
    """A small model's q4_k_m is otherwise larger than its q5_0, and nobody says why."""
    small = checkpoints.llama31(tmp_path / "small")  # whose down_proj has rows of 384
    done = quantize(ok, small, "q4_k_m", "q5_0", "--folder", tmp_path / "m.quants")
    (line,) = (one for one in done.stderr.splitlines() if "do not divide" in one)
    assert line.startswith(
        "m.quants: 3 of 31 tensors have rows that the blocks of q4_k_m do not divide"
    )
    assert line.endswith("; libllama makes them q5_0, q8_0")


def test_several_types_take_one_read_of_the_checkpoint(ok, step, tmp_path):
    """Counted by the kernel: bytes that the step read by system calls."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ingot.base.options import call; from quantize_gguf import quantize_gguf\n"
        "def rchar(): return int(open('/proc/self/io').read().split()[1])\n"
        "before = rchar(); call(quantize_gguf, sys.argv[2:]); print('READ', rchar() - before)\n"
    )
    (tmp_path / "count.py").write_text(program)
    words = ("--checkpoint", checkpoints.DEMO, *HEADER, "--folder", tmp_path / "demo.quants")
    types = ("q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "iq4_xs")
    done = ok("llamacpp", tmp_path / "count.py", ROOT / "scripts", *words, "--quant", *types)
    found = int(done.stdout.split("READ ")[1].split()[0])
    weights = sum(path.stat().st_size for path in checkpoints.DEMO.glob("*.safetensors"))
    assert found <= 1.1 * weights + 500_000  # and a tokenizer, modules, libraries


def test_by_an_importance_matrix_the_bytes_are_llama_quantizes_too(ok, tool, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "f16.gguf", "f16")
    convert(ok, checkpoints.DEMO, tmp_path / "f32.gguf", "f32")
    matrix = tmp_path / "demo.imatrix"
    ok(
        "llamacpp", "compute_imatrix.py", "--gguf", tmp_path / "f16.gguf", "--text", PROMPTS,
        "--imatrix", matrix,
    )  # fmt: skip
    types = ("q4_k_m", "iq2_xs", "iq3_xs")
    words = ("--imatrix", matrix, "--folder", tmp_path / "demo.quants")
    quantize(ok, checkpoints.DEMO, *types, *words)
    for kind in types:
        tool(
            "llama-quantize", "--imatrix", matrix.name, "f32.gguf", "theirs", kind, cwd=tmp_path
        )  # fmt: skip
        ours = tmp_path / f"demo.quants/model.{kind}.gguf"
        assert ours.read_bytes() == (tmp_path / "theirs").read_bytes(), kind
    pairs, _ = read(ours)
    assert pairs["quantize.imatrix.file"] == "demo.imatrix"
    assert pairs["quantize.imatrix.dataset"].startswith("sha256:")


def test_the_importance_matrix_is_llama_imatrixs(ok, tool, tmp_path):
    """Theirs has a KV cache of float16; ours of float32."""
    convert(ok, checkpoints.DEMO, tmp_path / "f32.gguf", "f32")
    ok(
        "llamacpp", "compute_imatrix.py", "--gguf", tmp_path / "f32.gguf", "--text", PROMPTS,
        "--imatrix", tmp_path / "ours",
    )  # fmt: skip
    tool(
        "llama-imatrix", "-m", tmp_path / "f32.gguf", "-f", PROMPTS, "-o", tmp_path / "theirs",
        "--parse-special", "--output-format", "gguf", "-c", 512, "--no-ppl",
    )  # fmt: skip

    def values(path):
        return {
            t.name: np.fromfile(path, "<f4", t.nbytes // 4, offset=t.offset) for t in read(path)[1]
        }

    ours, theirs = values(tmp_path / "ours"), values(tmp_path / "theirs")
    assert list(ours) == list(theirs) and len(ours) == 56
    for name, wanted in theirs.items():
        assert np.allclose(ours[name], wanted, rtol=1e-2, atol=1e-3 * wanted.max()), name


def test_a_type_that_needs_a_matrix_is_refused_without_one(step, tmp_path):
    done = quantize(step, checkpoints.DEMO, "iq2_xs", "--gguf", tmp_path / "m.gguf")
    assert done.returncode == 1 and "m.gguf: iq2_xs needs an importance matrix" in done.stderr
    assert not list(tmp_path.glob("*.gguf*"))


FAULTS = {  # what is done to the file, and what the record's step says
    "a byte of a block": ("blk.1.attn_q.weight", "blk.1.attn_q.weight is not the checkpoint's in"),
    "a byte of the head": ("output.weight", "output.weight is not the checkpoint's in Q6_K"),
}


def test_a_quantised_file_has_a_record_with_its_numbers_and_limits(ok, step, peers, tmp_path):
    told = peers(checkpoints.DEMO, [PROMPTS], tokens=2048)
    quantize(ok, checkpoints.DEMO, "q4_k_m", "--gguf", tmp_path / "m.gguf")

    def verify(run, *more):
        return run(
            "llamacpp", "verify_gguf.py", "--checkpoint", checkpoints.DEMO, "--gguf",
            tmp_path / "m.gguf", "--dtype", "q4_k_m", *HEADER, *told, *more,
            "--record", tmp_path / "m.json",
        )  # fmt: skip

    verify(ok)
    checks = json.loads((tmp_path / "m.json").read_text())["checks"]
    assert 0.004 < checks["numbers"]["mean_kl"] < 0.05  # as llama.cpp's own table says: 0.03
    assert checks["errors"].keys() == {"Q4_K", "Q6_K"} and checks["texts_equal"] > len(STRINGS)
    assert checks["numbers"]["tokens"] == 2044 and checks["numbers"]["corpus_tokens"] > 16_000
    (tmp_path / "m.json").unlink()
    done = verify(step, "--limit", "mean_kl=0.001")
    assert done.returncode == 1 and "mean_kl is 0.02" in done.stderr
    assert "expected at most 0.001; take a type of more bits" in done.stderr
    for name, said in FAULTS.values():
        data = bytearray((tmp_path / "m.gguf").read_bytes())
        (info,) = [one for one in read(tmp_path / "m.gguf")[1] if one.name == name]
        data[info.offset + info.nbytes // 2] ^= 1
        whole = (tmp_path / "m.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(data)
        done = verify(step)
        assert done.returncode == 1 and said in done.stderr
        (tmp_path / "m.gguf").write_bytes(whole)
    assert not (tmp_path / "m.json").exists()
