"""What `ingot stream` takes, and what it says of the rest."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingot.base import claim
from ingot.base.atomic import replacing
from ingot.base.refused import Refused
from ingot.driver.commands import stream
from ingot.driver.forecast import streamed

SHARDS = [f"artifacts/m.hf/model-{n}.safetensors" for n in (1, 2)]


def job(rule, outputs, inputs=(), action="run", step=None, **files):
    outputs = [outputs] if isinstance(outputs, str) else outputs
    sizes = {path: files.get("size", 100) for path in outputs}
    return {
        "rule": rule, "step": step or rule, "outputs": outputs, "inputs": [*inputs], "action": action,
        "forecast": {"files": sizes}, "stamps": {},
    }  # fmt: skip


LISTING = job("fetch_listing", "artifacts/m.hf/listing.json", size=1)
FETCHED = [
    LISTING, *(job("fetch_file", path, LISTING["outputs"], size=4000) for path in SHARDS),
    job("fetch_file", "artifacts/m.hf/config.json", LISTING["outputs"], "none", size=1),
]  # fmt: skip
READ = [*SHARDS, "artifacts/m.hf/config.json"]
IMATRIX = job("compute_imatrix", "artifacts/m.imatrix", ["artifacts/m.gguf"])
QUANTISED = job("quantize_gguf", "artifacts/m.q4_k_m.gguf", [*READ, "artifacts/m.imatrix"])


def test_the_disk_of_a_stream_is_that_of_its_outputs_and_of_the_pieces_in_between():
    jobs = [*FETCHED, job("safetensors_to_gguf", "artifacts/m.gguf", READ, size=7000)]
    jobs += [job("gguf_to_irpa", "artifacts/m.irpa", ["artifacts/m.gguf"], size=7100)]
    most = 1 + 7000 + 7100 + streamed.WINDOW + 4000
    assert streamed.forecast(jobs) == {"disk": most, "reads": 1}
    jobs[1:3] = [{**one, "action": "none"} for one in jobs[1:3]]
    assert streamed.forecast(jobs)["disk"] is None, "the checkpoint is here"


def test_a_plan_says_nothing_of_a_stream_that_cannot_be():
    jobs = [*FETCHED, job("generate_reference", "artifacts/m.reference.npz", READ)]
    assert streamed.forecast(jobs) == {"disk": None, "reads": None}
    with pytest.raises(Refused, match="generate_reference reads the whole checkpoint at once"):
        streamed.reads(jobs, streamed.shards(jobs))


def test_weights_of_two_models_are_two_streams():
    jobs = [*FETCHED, job("fetch_file", "artifacts/other.hf/model.safetensors")]
    with pytest.raises(Refused, match="second checkpoint"):
        streamed.shards(jobs)
    adapter = job("fetch_file", "artifacts/tuned.hf/adapter_model.safetensors")
    assert streamed.shards([*FETCHED, adapter]) == {*SHARDS}


def test_what_a_stream_waits_for_is_all_that_is_read_but_the_shards():
    writer = job("safetensors_to_gguf", "artifacts/m.gguf", [*READ, "scripts/x.py", "logs/mark"])
    jobs = [*FETCHED, writer, job("toolchain", "logs/mark")]
    found = stream.prerequisites(jobs, [writer], {*SHARDS})
    assert found == ["artifacts/m.hf/listing.json", "logs/mark"]


def test_what_is_made_of_an_artifact_of_this_read_is_of_the_next():
    jobs = [*FETCHED, job("safetensors_to_gguf", "artifacts/m.gguf", READ), IMATRIX, QUANTISED]
    rules = [[one["rule"] for one in read] for read in streamed.reads(jobs, {*SHARDS})]
    assert rules == [["safetensors_to_gguf"], ["quantize_gguf"]]
    assert streamed.forecast(jobs)["reads"] == 2
    jobs[-3:-1] = [{**one, "action": "none"} for one in jobs[-3:-1]]
    assert streamed.reads(jobs, {*SHARDS}) == [[jobs[-1]]]


def test_what_is_there_already_needs_no_read_of_its_own():
    imatrix = {**IMATRIX, "action": "none"}
    jobs = [*FETCHED, job("safetensors_to_gguf", "artifacts/m.gguf", READ), imatrix, QUANTISED]
    assert streamed.forecast(jobs)["reads"] == 1
    imatrix["action"] = "run"
    assert streamed.forecast(jobs)["reads"] == 2


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """reads.of(jobs): what is read for where no read writes anything, and what Snakemake is asked for."""
    found = SimpleNamespace(read=[], built=[])
    nothing = lambda *_, **__: None  # noqa: E731
    monkeypatch.setattr(stream, "build", lambda root, paths, *_: found.built.append(paths))
    monkeypatch.setattr(stream, "put_on_record", nothing)
    monkeypatch.setattr(stream.schema, "load", nothing)
    monkeypatch.setattr(stream.targets, "check", nothing)

    def run(jobs):
        def one(root, ready, *_):
            return SimpleNamespace(run=lambda more: found.read.append((len(ready), more)))

        monkeypatch.setattr(stream, "Stream", one)
        monkeypatch.setattr(stream, "dry_run", lambda *_, **__: jobs)
        stream.run(tmp_path, SimpleNamespace(target=[RECORD], configfile=None, window=1))

    found.of = run
    monkeypatch.setenv("INGOT_NOTES", "")  # put back in the end
    monkeypatch.chdir(tmp_path)
    return found


RANKS, RECORD = "artifacts/m_tp2.irpa", "artifacts/m_tp2.irpa.verified.json"


def test_what_comes_on_no_record_is_not_streamed_for_ever(reads):
    """The disk may be full, or an input have changed while it was read."""
    quantised = job("quantize_gguf", "artifacts/m.q4_k_m.gguf", [*READ, RANKS])
    jobs = [*FETCHED, job("shard_irpa", RANKS, READ), quantised]
    with pytest.raises(Refused, match=f"{RANKS}: written, but on no record"):
        reads.of(jobs)
    assert reads.read == [(1, 1)]


def test_what_a_stopped_stream_had_written_is_taken_in_before_anything_is_fetched(reads, tmp_path):
    path = tmp_path / RANKS
    path.parent.mkdir()
    one = {**job("shard_irpa", RANKS, READ), "key": "k", "stamps": {"a": "1"}}
    os.environ["INGOT_NOTES"] = str(tmp_path / ".ingot/notes")
    said = {"run": "stream-1", "key": "k", "inputs": {"a": "1"}, "streamed": True}

    def written(**changes):
        os.environ["INGOT_RUN"] = "stream-1"
        claim.claim(RANKS, said | changes)
        with replacing(Path(RANKS)) as partial:
            partial.touch()
        del os.environ["INGOT_RUN"]

    written()
    assert stream.finished(one) and not stream.finished({**one, "action": "none"})
    assert not stream.finished({**one, "key": "of other inputs"})
    reads.of([one])
    assert reads.built == [[RANKS], [RECORD]] and not reads.read
    path.write_text("by somebody else")
    assert not stream.finished(one)
    written(streamed=False)
    assert not stream.finished(one)
