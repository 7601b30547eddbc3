"""Verifications catch what is planted: a sample of bench/verifier_faults.py, which plants them all."""

import json
import os
import subprocess
import sys
import time

import pytest

import checkpoints
import faults
import forging
from conftest import FEW, ROOT, once, shared_folder
from forgeries import FORGERIES, Forgery
from ingot.base.refused import Refused
from ingot.formats.iree import consumers
from ingot.formats.iree import irpa as irpa_format

CASES = [(one, kind) for one in FORGERIES for kind in one.kinds]


@pytest.mark.slow
def test_a_sample_of_every_kinds_faults_is_caught(shared, tmp_path_factory):
    kinds = ("gguf", "k-quant", "split", "irpa", "ranks", "trtllm-ckpt", "w4a16")
    words = ["--json", "--most", 6, "--seed", time.time_ns() % 10**9]  # others each time
    command = [sys.executable, ROOT / "bench/verifier_faults.py", *words]
    environment = {**os.environ, "INGOT_STORE": str(shared.store)}
    environment["INTERPRETERS"] = str(shared_folder(tmp_path_factory))
    done = subprocess.run(
        [*map(str, command), "--kind", *kinds], env=environment, capture_output=True, text=True,
        timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(kinds) <= set(faults.KINDS)
    for kind, row in found.items():
        assert row["caught"] + row["harmless"] == row["faults"] == 6, (kind, words, done.stderr)
        assert not row["tracebacks"] and not row["ended"], (kind, done.stderr)


@pytest.fixture
def references(forked, pieces, tmp_path_factory):
    """references("demo") is what transformers makes of it: made once a run, by makers nobody touched."""

    def made(name):
        with once(tmp_path_factory, f"references-{name}") as (place, done):
            return told_of(name, place, done)

    def told_of(name, place, done):
        checkpoint = checkpoints.DEMO if name == "demo" else place / "checkpoint"
        if name == "demo, float32" and not done:
            checkpoints.demo_in_float32(checkpoint)
        elif name != "demo" and not done:
            checkpoints.variant(checkpoint, name, tame=True, tokenizer=pieces)
        paths = {name: place / name for name in ("reading", "reference", "texts", "scores")}
        told = {name: [f"--{name}", str(path)] for name, path in paths.items()}
        whole = ["--checkpoint", checkpoint]
        for script, *words in () if done else (
            ("read_config.py", "--config", checkpoint / "config.json", *told["reading"]),
            ("generate_reference.py", *whole, *told["reading"], "--prompts",
             checkpoints.DEMO / "prompts.txt", "--steps", FEW, *told["reference"]),
            ("encode_texts.py", *whole, *told["reading"], "--corpus", ROOT / "models/corpus.txt",
             "--tokens", 1024, *told["texts"]),
            ("score_corpus.py", *whole, *told["texts"], *told["scores"]),
        ):  # fmt: skip
            said = forked("transformers", ROOT / "scripts" / script, *words)
            assert said.returncode == 0, said.stderr
        return {**told, "checkpoint": checkpoint}

    return made


@pytest.mark.slow
@pytest.mark.parametrize("one, kind", CASES, ids=[f"{kind}: {one.name}" for one, kind in CASES])
def test_what_a_wrong_maker_makes_has_no_record(one, kind, references, forked, tmp_path):
    said = forging.caught(one, kind, tmp_path / "forged", forked, references(one.of))
    assert said, "it was verified"
    assert said.startswith("verify_"), said


CONFIG = [one for one in FORGERIES if one.file in ("model/config.py", "model/rope.py")]


@pytest.mark.slow
@pytest.mark.parametrize("one", CONFIG, ids=[one.name for one in CONFIG])
def test_a_number_that_we_misread_is_no_reading_of_transformers(one, forked, tmp_path):
    scripts = forging.forge(one, tmp_path)
    words = ["--config", checkpoints.DEMO / "config.json", "--reading", tmp_path / "reading.json"]
    done = forked("transformers", scripts / "read_config.py", *words)
    assert done.returncode == 1 and " to Ingot; expected one reading" in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", forging.RIGHT)
def test_what_the_right_makers_make_has_one(name, kind, references, forked, tmp_path):
    right = Forgery("none", (kind,), "base/refused.py", (), name)
    assert forging.caught(right, kind, tmp_path / "right", forked, references(name)) is None


def test_an_archive_with_a_byte_that_is_not_the_layouts_is_refused(tmp_path):
    path, tensors = tmp_path / "m.irpa", [("a", "F32", (4,)), ("b", "F32", (3,))]
    layout = irpa_format.archive(tensors, {"x": b"text"})
    whole = bytearray(layout.size)
    whole[: len(layout.head)] = layout.head
    for at, text in layout.texts.items():
        whole[at : at + len(text)] = text
    path.write_bytes(whole)
    consumers.exact(path, layout)
    (b,) = (entry for entry in layout.entries if entry.name == "b")
    for at, said in (
        (4, "byte 4 is"),
        (b.offset + b.nbytes, "are not zero"),
        (len(whole), "bytes, expected"),
    ):
        wrong = whole + bytearray([0]) if at == len(whole) else bytearray(whole)
        wrong[at] ^= 1
        path.write_bytes(wrong)
        with pytest.raises(Refused, match=said):
            consumers.exact(path, layout)
