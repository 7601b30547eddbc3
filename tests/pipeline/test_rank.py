"""`ingot rank`: some ranks of a set, from their own bytes on the hub, checked against the set's record."""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import time

import pytest
import yaml

import checkpoints
from conftest import ROOT, once
from fake_hub import COMMIT, Hub
from ingot.base import digest, processes

TWO = "small_tp2.trtllm-ckpt"  # of which both ranks are written at once
FILES = ("small_tp2.irpa", "small_tp2.rank0.irpa", "small_tp2.rank1.irpa")
# IRPA, TensorRT-LLM's ranks, and its ranks in two stages; one whose head is the embedding
SETS = ("small_tp2.irpa", TWO, "staged_tp2.trtllm-ckpt", "tied_tp2.irpa")


@pytest.fixture(scope="module")
def built(tmp_path_factory, snakemake):
    """A hub, and the sets with their records as another machine built them, once for all."""
    small = {
        "hub": "org/small", "revision": COMMIT, "shards": 2, "name": "small", "tp": [1, 2],
        "pre_tokenizer": "llama-bpe", "architecture": "LlamaForCausalLM", "hardware": "cpu",
    }  # fmt: skip
    staged = {**small, "trtllm": {"pp": 2, "embedding": "columns"}}
    models = {"small": small, "staged": staged, "tied": {**small, "hub": "org/tied"}}
    catalogue = yaml.safe_dump({"models": models})
    with once(tmp_path_factory, "ranks") as (folder, done):
        there = folder / "there"
        if not done:
            tied = {"tie_word_embeddings": True, "num_hidden_layers": 2}
            checkpoints.llama31(folder / "hub/org/small", tame=True, num_hidden_layers=6)
            checkpoints.llama31(folder / "hub/org/tied", tame=True, **tied)
            there.mkdir()
            (there / "models.local.yaml").write_text(catalogue)
            with Hub(folder / "hub") as hub:
                own = {"INGOT_STORE": str(there / "store"), "HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
                wanted = [f"artifacts/{name}.verified.json" for name in SETS]
                said = snakemake(there, "-q", "all", "--", *wanted, environment=own)
                assert said.returncode == 0, said.stderr
    with Hub(folder / "hub") as hub:
        yield there, hub, catalogue


def command(folder, hub, name, *words):
    own = {"INGOT_STORE": str(folder / "store"), "HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    return {
        "args": [ROOT / ".venv/bin" / name, *words], "cwd": folder, "env": os.environ | own, "text": True,
        "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
    }  # fmt: skip


@pytest.fixture
def node(built, tmp_path):
    """A machine that has nothing of the models but the records: what `ingot rank` says there."""
    there, hub, catalogue = built
    (tmp_path / "models.local.yaml").write_text(catalogue)
    (tmp_path / "artifacts").mkdir()
    for name in SETS:
        shutil.copy(there / f"artifacts/{name}.verified.json", tmp_path / "artifacts")
    hub.faults.clear()
    hub.requests.clear()

    def rank(*words, fails=False):
        done = subprocess.run(
            **command(tmp_path, hub, "ingot", "rank", *words), timeout=600, check=False
        )
        assert (done.returncode != 0) == fails and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    return rank


def file_of(name, rank):
    """What a set says of a rank's file."""
    stem, _, kind = name.partition(".")
    return f"{stem}.rank{rank}.irpa" if kind == "irpa" else f"{name}/rank{rank}.safetensors"


def asked(hub):
    """How often large files were asked for, and the bytes of the ranges, but for headers."""
    spans = [one[2] for one in hub.requests if "/large/" in one[1] and one[0] == "GET"]
    ranges = [
        tuple(map(int, one.split("-")))
        for span in spans
        for one in span.removeprefix("bytes=").split(",")
    ]
    return len(spans), sum(last + 1 - first for first, last in ranges if first)


def stands(folder):
    """What is there, but for locks, and what says by which stream something comes."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".busy"]
    return {str(path.relative_to(folder)) for path in found if path.name != "of"}


@pytest.mark.parametrize("name", [one for one in SETS if one != TWO])
def test_a_rank_comes_from_its_own_bytes(built, node, tmp_path, name):
    there, hub, _ = built
    last = 3 if name.startswith("staged") else 1
    said = node(f"artifacts/{name}", str(last))
    path = file_of(name, last)
    assert f"ranks/{path}: " in said and f"as artifacts/{name}.verified.json says" in said
    size = (there / "artifacts" / path).stat().st_size
    assert asked(hub)[1] <= size, "of bfloat16, or smaller: norms are stored wider"
    about = name if name.endswith(".irpa") else f"{name}/config.json"
    for one in (path, about):
        whole, part = (folder / one for folder in (there / "artifacts", tmp_path / "ranks"))
        assert digest.read(part) == digest.read(whole), one
    sums = set() if name.endswith(".irpa") else {f"{name}/SHA256SUMS"}
    assert stands(tmp_path / "ranks") == {path, about} | sums, "nothing else is left"
    assert not [*tmp_path.glob("artifacts/*.hf/.coming")]


def test_of_a_server_that_answers_for_one_range_gaps_come_too(built, node, tmp_path):
    """And one that is busy now and then."""
    there, hub, _ = built
    hub.faults |= {"single": True, "busy": [503, 2]}
    node("artifacts/small_tp2.irpa", "1")
    many = [one for one in hub.requests if "," in (one[2] or "")]
    assert [one[4] for one in many if one[4] != 503] == [200], "asked for once"
    assert hub.faults["busy"] == [503, 0]
    path = file_of("small_tp2.irpa", 1)
    assert digest.read(tmp_path / "ranks" / path) == digest.read(there / "artifacts" / path)
    assert asked(hub)[1] > (there / "artifacts" / path).stat().st_size, "with what is between"


def test_what_is_right_already_is_not_fetched_again(built, node, tmp_path):
    there, hub, _ = built
    words = ("artifacts/small_tp2.irpa", "0", "1", "1")
    node(*words)
    whole = {one: digest.read(there / "artifacts" / one) for one in FILES}
    assert {one: digest.read(tmp_path / "ranks" / one) for one in FILES} == whole
    hub.requests.clear()
    assert "ranks/small_tp2.rank1.irpa" in node(*words)
    (coming := tmp_path / f"ranks/.small_tp2.irpa.{platform.node()}.coming").mkdir()
    for one in FILES[:2]:  # as one leaves them that is killed before it puts them in place
        (tmp_path / "ranks" / one).rename(coming / one)
    node(*words)
    assert not asked(hub)[0]
    assert {one: digest.read(tmp_path / "ranks" / one) for one in FILES} == whole
    with (tmp_path / "ranks" / FILES[1]).open("r+b") as file:
        file.write(b"another")
    said = node("artifacts/small_tp2.irpa", "1", fails=True)
    assert "rank0.irpa: not the rank of artifacts/small_tp2.irpa.verified.json" in said


def test_two_at_once_write_two_ranks_of_one_set(built, node, tmp_path):
    there, hub, _ = built
    words = [command(tmp_path, hub, "ingot", "rank", f"artifacts/{TWO}", rank) for rank in "01"]
    both = [subprocess.Popen(**one) for one in words]
    for one in both:
        said, _ = one.communicate(timeout=600)
        assert one.returncode == 0, said
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "ranks" / TWO, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count(": OK") == 3, done
    for rank in (0, 1):
        path = file_of(TWO, rank)
        assert digest.read(tmp_path / "ranks" / path) == digest.read(there / "artifacts" / path)


def test_other_bytes_than_the_records_are_not_kept(built, node, tmp_path):
    _, hub, _ = built
    hub.faults["spoilt"] = [True, 1]
    said = node("artifacts/small_tp2.irpa", "1", fails=True)
    assert "rank1.irpa: its bytes are not those of artifacts/small_tp2.irpa.verified.json" in said
    assert not stands(tmp_path / "ranks")
    hub.faults["nan"] = [True, 1]
    said = node("artifacts/small_tp2.irpa", "1", fails=True)
    assert "the checkpoint is damaged" in said
    assert "as artifacts/" in node("artifacts/small_tp2.irpa", "1"), "all has come again"
    assert not [*tmp_path.glob("artifacts/*.hf/.coming")]


def test_a_record_of_another_set_is_refused_before_anything_is_fetched(built, node, tmp_path):
    _, hub, _ = built
    for name in SETS[:2]:
        record = json.loads((tmp_path / f"artifacts/{name}.verified.json").read_text())
        field = "sha256" if name.endswith(".irpa") else "config_sha256"
        (tmp_path / "other.json").write_text(json.dumps(record | {field: "0" * 64}))
        said = node(f"artifacts/{name}", "1", "--record", "other.json", fails=True)
        assert "the record says 0000" in said
        (tmp_path / "older.json").write_text(json.dumps({"sha256": "0" * 64}))
        said = node(f"artifacts/{name}", "1", "--record", "older.json", fails=True)
        assert "says no digest of a rank" in said and "verify the set again" in said
    assert not asked(hub)[1] and not stands(tmp_path / "ranks")


def test_without_a_record_nothing_is_fetched_unless_asked_for(built, node, tmp_path):
    there, hub, _ = built
    (tmp_path / "artifacts/small_tp2.irpa.verified.json").unlink()
    said = node("artifacts/small_tp2.irpa", "1", fails=True)
    assert "missing, expected the set's record; name one by --record" in said
    assert "no rank 4, expected 0 to 3" in node("artifacts/staged_tp2.trtllm-ckpt", "4", fails=True)
    assert "expected a set of ranks" in node("artifacts/small.gguf", "0", fails=True)
    assert "gguf_to_irpa makes it" in node("artifacts/small.irpa", "0", "--unverified", fails=True)
    assert not asked(hub)[0]
    said = node("artifacts/small_tp2.irpa", "1", "--unverified", "--to", "on this node")
    assert "checked by nothing" in said
    hub.faults["norange"] = True
    said = node("artifacts/small_tp2.irpa", "0", "--unverified", fails=True)
    assert "gives the whole file alone, expected a range of it" in said
    whole = there / "artifacts/small_tp2.rank1.irpa"
    assert digest.read(tmp_path / "on this node/small_tp2.rank1.irpa") == digest.read(whole)


def test_a_killed_one_goes_on(built, node, tmp_path):
    there, hub, _ = built
    hub.faults["slow"] = 2.0
    words = command(tmp_path, hub, "ingot", "rank", "artifacts/small_tp2.irpa", "1")
    process = subprocess.Popen(**words)
    shards = lambda: {one[1] for one in hub.requests if "," in (one[2] or "")}  # noqa: E731
    while process.poll() is None and len(shards()) < 2:
        time.sleep(0.02)
    for pid in (process.pid, *processes.below(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert not [one for one in stands(tmp_path / "ranks") if not one.endswith(".partial")]
    hub.faults.clear()
    before = asked(hub)[1]
    hub.requests.clear()
    node("artifacts/small_tp2.irpa", "1")
    assert not [*tmp_path.glob("artifacts/*.hf/.coming")]
    path = file_of("small_tp2.irpa", 1)
    assert digest.read(tmp_path / "ranks" / path) == digest.read(there / "artifacts" / path)
    size = (there / "artifacts" / path).stat().st_size
    assert asked(hub)[1] < 0.9 * size, "the first shard's bytes are here"
    assert before + asked(hub)[1] < 2 * size
