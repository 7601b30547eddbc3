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
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.digests import kinds_of

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


def test_each_digest_is_that_of_the_values_in_that_dtype(digests, python, tmp_path):
    """As torch casts them, which no code of ours does."""
    config, found = checkpoints.llama_config(num_hidden_layers=1), {}
    for stored in ("BF16", "F16", "F32"):
        (folder := tmp_path / stored).mkdir()
        checkpoints.write_json(folder / "config.json", config)
        checkpoints.write_weights(folder, config, stored, stored, 1, tame=True)
        for dtype in ("f16", "bf16", "f32"):
            said = json.loads(digests(folder, dtype)[1].read_bytes())["tensors"]
            found[f"{stored} {dtype}"] = {name: one["kinds"] for name, one in said.items()}
    command = [python("transformers"), "-c", TORCH, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found == json.loads(done.stdout)


TORCH = """
import hashlib, json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
kinds, found = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}, {}
for path in Path(sys.argv[1]).glob("*/*.safetensors"):
    for dtype in kinds:
        found[f"{path.parent.name} {dtype}"] = of = {}
        for name, one in load_file(path).items():
            of[name] = {}
            for kind in {dtype, "f32"}:
                exact = one.to(torch.float32)
                cast = exact.to(kinds[kind])
                back, data = cast.to(torch.float32), cast.contiguous().view(torch.uint8).numpy()
                of[name][kind.upper()] = {
                    "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
                    "rounded": int((back != exact).sum()),
                    "difference": float((back - exact).abs().max()),
                }
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "shape, dtype, twin, kinds",
    [
        ((64,), "f16", False, ["F16", "F32"]),  # a norm, which most formats keep in float32
        ((4096, 4096), "bf16", False, ["BF16"]),
        ((4096, 4096), "f16", True, ["F16", "F32"]),  # a head that may be the embedding
        ((4096, 4096), "f32", True, ["F32"]),
    ],
)
def test_a_tensor_has_a_digest_in_each_dtype_that_a_file_may_hold_it_in(
    shape, dtype, twin, kinds, tmp_path
):
    tensor = Tensor("x", "BF16", shape, tmp_path / "x", 0, 0)
    assert kinds_of(tensor, dtype, twin) == kinds


def changed(folder, name, **fields):
    """A tensor of one of its shards says something else of itself in the header."""
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        said = json.loads(data[8:start])
        if name in said:
            said[name] |= fields
            text = json.dumps(said).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
            return


def test_what_a_dtype_cannot_hold_has_no_digest_in_it(digests, ok, step, reading, tmp_path):
    """A file of it would hold infinity, and is refused for it."""
    folder = shutil.copytree(DEMO, tmp_path / "c")
    path = max(folder.glob("*.safetensors"))
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    said = json.loads(path.read_bytes()[8:start])
    name = next(name for name, one in said.items() if len(one.get("shape", ())) == 2)
    with path.open("r+b") as file:
        file.seek(start + said[name]["data_offsets"][0])
        file.write(np.uint32(0x7F000000).tobytes()[2:])  # 1.7e38 in bfloat16
    _, found = digests(folder)
    kinds = json.loads(found.read_bytes())["tensors"][name]["kinds"]
    assert kinds["F16"] is None and kinds["F32"]
    ranks = [tmp_path / f"m.rank{number}.irpa" for number in (0, 1)]
    out = ["--dtype", "f16", "--root", tmp_path / "m.irpa", "--ranks", *ranks]
    ok("convert", "shard_irpa.py", "--checkpoint", DEMO, *out, "--tp", "2")
    words = ["--digests", found, *reading(folder), *out, "--record", tmp_path / "r"]
    done = step("iree", "verify_shards.py", *words)
    assert done.returncode == 1 and "its source holds what F16 cannot" in done.stderr, done.stderr


def test_codes_and_single_numbers_have_a_name_and_no_digest(digests, tmp_path):
    """Files of old hold such as attention.masked_bias; a file that leaves out what is read is refused."""
    folder = checkpoints.llama31(tmp_path / "c", num_hidden_layers=1)
    changed(folder, "model.norm.weight", dtype="U8", shape=[512])
    sizes = {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}
    scalar = folder / "extra.safetensors"
    text = json.dumps({"model.layers.0.self_attn.masked_bias": sizes}).encode()
    scalar.write_bytes(len(text).to_bytes(8, "little") + text + bytes(2))
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    index["weight_map"]["model.layers.0.self_attn.masked_bias"] = scalar.name
    checkpoints.write_json(folder / "model.safetensors.index.json", index)
    _, found = digests(folder)
    said = json.loads(found.read_bytes())["tensors"]
    for name in ("model.norm.weight", "model.layers.0.self_attn.masked_bias"):
        assert said[name]["kinds"] == {}, name
