"""IRPA archives: sharktank's bytes, and one clear line for what is no float GGUF."""

import hashlib
import json

import pytest

import checkpoints
from conftest import convert
from ingot.formats.iree import irpa


def rewrite(run, gguf, irpa):
    return run("convert", "gguf_to_irpa.py", "--gguf", gguf, "--irpa", irpa)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("kind", ["demo", "llama31"])
def test_writes_the_bytes_of_sharktanks_dump_gguf(kind, dtype, ok, forked, tmp_path):
    checkpoint = checkpoints.DEMO
    if kind != "demo":
        checkpoint = getattr(checkpoints, kind)(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", dtype)
    rewrite(ok, tmp_path / "m.gguf", tmp_path / "ours.irpa")
    words = ("--gguf-file", "m.gguf", "--output-irpa", "theirs.irpa")
    done = forked("iree", "-m", "sharktank.tools.dump_gguf", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ours.irpa").read_bytes() == (tmp_path / "theirs.irpa").read_bytes()


def test_of_tied_embeddings_the_head_is_one_more_name_of_the_embedding(ok, tmp_path):
    """sharktank's dump_gguf leaves it out, and then cannot export the model."""
    convert(ok, checkpoints.tied(tmp_path / "checkpoint"), tmp_path / "m.gguf")
    rewrite(ok, tmp_path / "m.gguf", tmp_path / "m.irpa")
    assert "output.weight" not in [entry.name for entry in irpa.read(tmp_path / "m.irpa")[1]]
    listed = json.loads(irpa.texts(tmp_path / "m.irpa")[irpa.TENSORS])
    assert listed["output.weight"]["raw_tensors"] == {"": "token_embd.weight"}


@pytest.mark.slow
def test_the_archive_holds_the_gguf_files_tensors_and_properties(ok, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "m.gguf")
    rewrite(ok, tmp_path / "m.gguf", tmp_path / "m.irpa")
    record = tmp_path / "m.irpa.verified.json"
    ok("iree", "verify_irpa.py", *words(tmp_path))
    assert '"tensors_equal": 40' in record.read_text()


def words(folder):
    """The options of verify_irpa.py, beside a record of the GGUF file."""
    sha256 = hashlib.sha256((folder / "m.gguf").read_bytes()).hexdigest()
    (folder / "m.gguf.json").write_text(json.dumps({"sha256": sha256, "result": "passed"}))
    return (
        "--gguf", folder / "m.gguf", "--gguf-record", folder / "m.gguf.json",
        "--irpa", folder / "m.irpa", "--record", folder / "m.irpa.verified.json",
    )  # fmt: skip


@pytest.mark.slow
def test_a_record_that_is_of_another_gguf_file_carries_no_archive(ok, step, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "m.gguf")
    rewrite(ok, tmp_path / "m.gguf", tmp_path / "m.irpa")
    told = words(tmp_path)
    for changed in ({"sha256": "0" * 64}, {"result": "failed"}):
        record = json.loads((tmp_path / "m.gguf.json").read_text())
        (tmp_path / "m.gguf.json").write_text(json.dumps({**record, **changed}))
        done = step("iree", "verify_irpa.py", *told)
        assert done.returncode == 1 and "m.gguf.json: not of " in done.stderr
        words(tmp_path)


@pytest.mark.slow
def test_the_record_is_refused_when_one_byte_of_a_tensor_differs(ok, step, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "m.gguf")
    rewrite(ok, tmp_path / "m.gguf", tmp_path / "m.irpa")
    with (tmp_path / "m.irpa").open("r+b") as file:
        file.seek(5_000_000)
        byte = file.read(1)[0]
        file.seek(5_000_000)
        file.write(bytes([byte ^ 1]))
    done = step("iree", "verify_irpa.py", *words(tmp_path))
    assert done.returncode == 1 and "differs from" in done.stderr
    assert not (tmp_path / "m.irpa.verified.json").exists()


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"<htm", r"m.gguf: starts with b'<htm', expected b'GGUF'"),
        (b"GGUF", r"m.gguf: header is damaged or ends early"),
        (b"GGUF\x02\0\0\0" + bytes(16), r"m.gguf: GGUF version 2, expected 3"),
    ],
)
def test_names_the_file_that_is_no_gguf(content, expected, step, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    done = rewrite(step, tmp_path / "m.gguf", tmp_path / "m.irpa")
    assert done.returncode == 1 and expected in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_quantised_file_is_refused_with_what_would_do(ok, step, tmp_path):
    convert(ok, checkpoints.DEMO, tmp_path / "m.gguf", "q8_0")
    done = rewrite(step, tmp_path / "m.gguf", tmp_path / "m.irpa")
    assert done.returncode == 1
    assert "is Q8_0, expected one of F32, F16, BF16; ask for the f16, bf16 or f32" in done.stderr
