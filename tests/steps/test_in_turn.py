"""Verifications in a stream: tensors are compared as they come, and the record is the same."""

import os
import shutil
import subprocess
import time

import pytest

import stream_shards
from checkpoints import DEMO
from conftest import ROOT
from ingot.base import pieces
from ingot.base.pieces import Pieces
from ingot.formats.iree import tensor_parallel

SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
PIECE = 500_000  # bytes, or a tensor
KINDS = {
    "ranks": ("iree", "shard_irpa.py", "verify_shards.py"),
    "trtllm": ("convert", "safetensors_to_trtllm.py", "verify_trtllm.py"),
}


@pytest.fixture(params=KINDS)
def made(request, ok, reading, tmp_path):
    """The toolchain, script and options of a verification, all but the checkpoint."""
    toolchain, maker, verifier = KINDS[request.param]
    if request.param == "ranks":
        ranks = tensor_parallel.rank_files(tmp_path / "m.irpa", 2)
        out = ["--dtype", "f16", "--root", tmp_path / "m.irpa", "--ranks", *ranks]
    else:
        out = ["--trtllm-checkpoint", tmp_path / "t"]
    ok("convert", maker, "--checkpoint", DEMO, *out, "--tp", "2")
    more = ["--tp", "2"] if request.param == "trtllm" else []
    return toolchain, verifier, [*out, *more, *reading(DEMO)]


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


def begun(python, made, coming, record):
    toolchain, verifier, words = made
    parts, checkpoint = coming
    told = {pieces.FOLDER: str(parts.where), pieces.WRITER: "v"}
    command = [
        python(toolchain),
        ROOT / "scripts" / verifier,
        *checkpoint,
        *words,
        "--record",
        record,
    ]
    return subprocess.Popen(
        [str(word) for word in command], env=os.environ | told, stderr=subprocess.PIPE, text=True
    )


def until(process, what):
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_one_that_is_killed_goes_on_and_its_record_is_that_of_a_checkpoint_on_the_disk(
    ok, python, made, coming, tmp_path
):
    toolchain, verifier, words = made
    ok(toolchain, verifier, "--checkpoint", DEMO, *words, "--record", tmp_path / "plain.json")
    parts, _ = coming
    second = parts.first_of(1)
    parts.tell(second + 2, 1, set())
    process = begun(python, made, coming, tmp_path / "r.json")
    until(process, lambda: (found := parts.done("v")) and found.done == second + 2)
    process.kill()
    process.communicate()
    assert stream_shards.Coming(parts, ["v"], 1000).resume() == 1, "the shard that it was in"
    for piece in range(second):
        assert parts.free(piece), "nobody reads of the first again"
    parts.tell(len(parts.pieces), 2, {*range(second)})
    process = begun(python, made, coming, tmp_path / "r.json")
    assert process.wait(300) == 0, process.communicate()
    process.communicate()
    assert (tmp_path / "r.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


def test_a_value_that_is_not_the_checkpoints_ends_it_in_one_line(python, made, coming, tmp_path):
    parts, _ = coming
    with parts.shard(1).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    parts.tell(len(parts.pieces), 2, set())
    process = begun(python, made, coming, tmp_path / "r.json")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 1 and len(said.splitlines()) == 1, said
    assert "is not the checkpoint's in" in said
    assert not (tmp_path / "r.json").exists()
