"""Digests of a checkpoint that comes in pieces: those of one on the disk, whoever was killed on the way."""

import json
import os
import shutil
import subprocess
import time

import numpy as np
import pytest

import checkpoints
import stream_shards
from checkpoints import DEMO
from conftest import ROOT
from ingot.base import pieces
from ingot.base.pieces import Pieces

SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
PIECE = 500_000  # bytes, or a tensor


@pytest.fixture
def coming(tmp_path):
    """A folder of the demo's pieces, all here, of which nobody is told yet; the checkpoint's files."""
    folder = tmp_path / "coming"
    (folder / "shards").mkdir(parents=True)
    found = []
    for number, name in enumerate(SHARDS):
        path = shutil.copy(DEMO / name, folder / "shards" / name)
        start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        size = path.stat().st_size
        found += [(number, *span) for span in stream_shards.spans(path, start, size, PIECE)]
    pieces.write(folder / "plan.json", {"shards": SHARDS, "pieces": found})
    (tmp_path / "hf").mkdir()
    shutil.copy(DEMO / "model.safetensors.index.json", tmp_path / "hf")
    files = ["model.safetensors.index.json", *SHARDS]
    return Pieces(folder), ["--checkpoint", *(tmp_path / "hf" / name for name in files)]


def begun(python, coming, digests):
    parts, checkpoint = coming
    told = {pieces.FOLDER: str(parts.where), pieces.WRITER: "v"}
    command = [
        python("convert"), ROOT / "scripts/digest_weights.py", *checkpoint, "--dtype", "f16",
        "--digests", digests,
    ]  # fmt: skip
    return subprocess.Popen(
        [str(word) for word in command], env=os.environ | told, stderr=subprocess.PIPE, text=True
    )


def until(process, what):
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_one_that_is_killed_goes_on_and_finds_what_is_found_on_the_disk(
    python, digests, coming, tmp_path
):
    _, plain = digests(DEMO)
    parts, _ = coming
    second = parts.first_of(1)
    parts.tell(second + 2, 1, set())
    process = begun(python, coming, tmp_path / "d.json")
    until(process, lambda: (found := parts.done("v")) and found.done == second + 2)
    process.kill()
    process.communicate()
    assert stream_shards.Coming(parts, ["v"], 1000).resume() == 1, "the shard that it was in"
    for piece in range(second):
        assert parts.free(piece), "nobody reads of the first again"
    parts.tell(len(parts.pieces), 2, {*range(second)})
    process = begun(python, coming, tmp_path / "d.json")
    assert process.wait(300) == 0, process.communicate()
    process.communicate()
    assert (tmp_path / "d.json").read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("stored", ["BF16", "F16", "F32"])
def test_each_digest_is_that_of_the_values_in_that_dtype(stored, dtype, digests, python, tmp_path):
    """As torch casts them, which no code of ours does."""
    config = checkpoints.llama_config(num_hidden_layers=1)
    checkpoints.write_json(tmp_path / "config.json", config)
    checkpoints.write_weights(tmp_path, config, stored, stored, 1, tame=True)
    _, found = digests(tmp_path, dtype)
    said = json.loads(found.read_bytes())["tensors"]
    done = subprocess.run(
        [python("transformers"), "-c", TORCH, tmp_path, dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = json.loads(done.stdout)
    assert {name: one["kinds"] for name, one in said.items()} == wanted


TORCH = """
import hashlib, json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
kinds = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
(path,) = Path(sys.argv[1]).glob("*.safetensors")
found = {}
for name, one in load_file(path).items():
    found[name] = {}
    for kind in {sys.argv[2], "f32"}:
        cast = one.to(torch.float32).to(kinds[kind])
        back, exact = cast.to(torch.float32), one.to(torch.float32)
        found[name][kind.upper()] = {
            "sha256": hashlib.sha256(cast.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest(),
            "rounded": int((back != exact).sum()), "difference": float((back - exact).abs().max()),
        }
print(json.dumps(found))
"""


def test_what_a_dtype_cannot_hold_has_no_digest_in_it(digests, ok, step, reading, tmp_path):
    """A file of it would hold infinity, and is refused for it."""
    folder = checkpoints.llama31(tmp_path / "c", num_hidden_layers=1)
    path = max(folder.glob("*.safetensors"))
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    said = json.loads(path.read_bytes()[8:start])
    name = next(name for name, one in said.items() if len(one.get("shape", ())) == 2)
    with path.open("r+b") as file:
        file.seek(start + said[name]["data_offsets"][0])
        file.write(np.uint32(0x7F000000).tobytes()[2:])  # 1.7e38 in bfloat16
    _, found = digests(folder)
    kinds = json.loads(found.read_bytes())["tensors"][name]["kinds"]
    assert "F16" not in kinds and "F32" in kinds
    other = checkpoints.llama31(tmp_path / "d", num_hidden_layers=1)
    out = (
        "--root",
        tmp_path / "m.irpa",
        "--ranks",
        *(tmp_path / f"m.rank{n}.irpa" for n in (0, 1)),
    )
    ok("convert", "shard_irpa.py", "--checkpoint", other, "--dtype", "f16", *out, "--tp", "2")
    words = (
        "--digests",
        found,
        *reading(folder),
        "--dtype",
        "f16",
        *out,
        "--record",
        tmp_path / "r",
    )
    done = step("iree", "verify_shards.py", *words)
    assert done.returncode == 1 and "in which nobody knows its source" in done.stderr, done.stderr
