"""The record of a GGUF file: given for the checkpoint's values, refused for any other."""

import json

import numpy as np
import pytest

import checkpoints
from conftest import convert


def verify(run, folder, checkpoint):
    return run(
        "convert", "verify_gguf.py", "--checkpoint", checkpoint, "--gguf", folder / "m.gguf",
        "--record", folder / "m.json",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "q8_0"])
def test_every_dtype_is_verified_and_says_what_was_rounded(dtype, ok, tmp_path):
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", dtype)
    verify(ok, tmp_path, checkpoint)
    checks = json.loads((tmp_path / "m.json").read_bytes())["checks"]
    assert (checks["values_rounded"] == 0) == (dtype in ("f32", "bf16"))
    assert checks["tensors"] == 31


@pytest.mark.parametrize("dtype", ["bf16", "f16", "q8_0"])
@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output.weight", "rope_freqs.weight"])
def test_one_wrong_value_is_refused(dtype, name, ok, step, tmp_path):
    from pathlib import Path

    from ingot.gguf.file import read

    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", dtype)
    (info,) = [t for t in read(Path(tmp_path / "m.gguf"))[1] if t.name == name]
    raw = np.memmap(tmp_path / "m.gguf", np.uint8, "r+", info.offset, info.nbytes)
    raw[-1] ^= 0x20
    raw.flush()
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and f"tensor {name} is not" in done.stderr
    assert not (tmp_path / "m.json").exists()


def test_rows_left_in_the_checkpoints_order_are_refused(ok, step, tmp_path):
    """A converter that forgets to reorder q: the same values, in the wrong rows."""
    from pathlib import Path

    from ingot.gguf.file import read

    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", "bf16")
    (info,) = [t for t in read(Path(tmp_path / "m.gguf"))[1] if t.name == "blk.0.attn_k.weight"]
    raw = np.memmap(tmp_path / "m.gguf", np.uint16, "r+", info.offset, info.shape)
    raw[[0, 1]] = raw[[1, 0]]
    raw.flush()
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and "blk.0.attn_k.weight is not" in done.stderr
