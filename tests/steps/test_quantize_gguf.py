"""k-quants by the real libllama."""

import json
import subprocess

import pytest

import checkpoints
from conftest import convert

CHECK = """
import json, sys
import numpy as np
from gguf import GGUFReader, quants
quantised, exact = ({t.name: t for t in GGUFReader(p).tensors} for p in sys.argv[1:3])
def values(t): return quants.dequantize(t.data, t.tensor_type)
error = {n: float(np.sqrt(((values(t) - values(exact[n]))**2).mean() / (values(exact[n])**2).mean()))
         for n, t in quantised.items() if t.data.ndim > 1}
print(json.dumps({"types": {n: t.tensor_type.name for n, t in quantised.items()}, "error": error,
                  "same": sorted(quantised) == sorted(exact)}))
"""


@pytest.mark.slow
def test_q4_k_m_of_the_demo_keeps_every_tensor_within_its_error(ok, python, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "f32.gguf", "f32")
    ok(
        "llamacpp", "quantize_gguf.py", "--source", tmp_path / "f32.gguf",
        "--gguf", tmp_path / "q4.gguf", "--quant", "q4_k_m",
    )  # fmt: skip
    files = [tmp_path / "q4.gguf", tmp_path / "f32.gguf"]
    done = subprocess.run(
        [python("convert"), "-c", CHECK, *files], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["types"]["output.weight"] == "Q6_K"
    assert found["types"]["blk.1.attn_q.weight"] == "Q4_K"
    assert found["types"]["blk.1.attn_norm.weight"] == found["types"]["rope_freqs.weight"] == "F32"
    assert max(found["error"].values()) < 0.12  # 4 bits: some 7 % of the root mean square
    assert (tmp_path / "q4.gguf").stat().st_size < 0.25 * (tmp_path / "f32.gguf").stat().st_size


def test_a_file_that_is_no_gguf_is_refused_and_nothing_is_left(step, tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"<html>")
    words = ("--source", tmp_path / "no.gguf", "--gguf", tmp_path / "q.gguf", "--quant", "q4_k_m")
    done = step("llamacpp", "quantize_gguf.py", *words)
    assert done.returncode == 1 and "libllama could not quantise it to q4_k_m" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["no.gguf"]
