"""What `ingot stream` takes, and what it says of the rest."""

from types import SimpleNamespace

import pytest

from ingot.base.refused import Refused
from ingot.driver.commands import stream
from ingot.driver.forecast import streamed

SHARDS = [f"artifacts/m.hf/model-{n}.safetensors" for n in (1, 2)]


def job(rule, outputs, inputs=(), action="run", step=None, **files):
    outputs = [outputs] if isinstance(outputs, str) else outputs
    sizes = {path: files.get("size", 100) for path in outputs}
    return {
        "rule": rule, "step": step or rule, "outputs": outputs, "inputs": [*inputs], "action": action,
        "forecast": {"files": sizes},
    }  # fmt: skip


LISTING = job("fetch_listing", "artifacts/m.hf/listing.json", size=1)
FETCHED = [
    LISTING, *(job("fetch_file", path, LISTING["outputs"], size=4000) for path in SHARDS),
    job("fetch_file", "artifacts/m.hf/config.json", LISTING["outputs"], "none", size=1),
]  # fmt: skip
READ = [*SHARDS, "artifacts/m.hf/config.json"]


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
        streamed.readers(jobs, streamed.shards(jobs))


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
    ranks, record = "artifacts/m_tp2.irpa", "artifacts/m_tp2.irpa.verified.json"
    jobs = [*FETCHED, job("shard_irpa", ranks, READ), job("verify_shards", record, [*READ, ranks])]
    ready, later = streamed.readers(jobs, {*SHARDS})
    assert ([one["rule"] for one in ready], [one["rule"] for one in later]) == (
        ["shard_irpa"], ["verify_shards"],
    )  # fmt: skip
    assert streamed.forecast(jobs)["reads"] == 2
    jobs[-2]["action"] = "none"
    assert streamed.readers(jobs, {*SHARDS}) == ([jobs[-1]], [])


def test_what_is_there_already_needs_no_read_of_its_own():
    imatrix = job("compute_imatrix", "artifacts/m.imatrix", ["artifacts/m.gguf"], "none")
    quantise = job("quantize_gguf", "artifacts/m.q4_k_m.gguf", [*READ, "artifacts/m.imatrix"])
    jobs = [*FETCHED, job("safetensors_to_gguf", "artifacts/m.gguf", READ), imatrix, quantise]
    assert streamed.forecast(jobs)["reads"] == 1
    imatrix["action"] = "run"
    assert streamed.forecast(jobs)["reads"] == 2


def test_what_comes_on_no_record_is_not_streamed_for_ever(monkeypatch, tmp_path):
    """The disk may be full, or an input have changed while it was read."""
    ranks, record = "artifacts/m_tp2.irpa", "artifacts/m_tp2.irpa.verified.json"
    jobs = [*FETCHED, job("shard_irpa", ranks, READ), job("verify_shards", record, [*READ, ranks])]
    runs = []
    nothing = lambda *_, **__: None  # noqa: E731
    for name in ("build", "put_on_record"):
        monkeypatch.setattr(stream, name, nothing)
    monkeypatch.setattr(stream.schema, "load", nothing)
    monkeypatch.setattr(stream.targets, "check", nothing)
    monkeypatch.setattr(stream, "dry_run", lambda *_, **__: jobs)
    fake = lambda root, ready, *_: SimpleNamespace(run=lambda more: runs.append((len(ready), more)))  # noqa: E731
    monkeypatch.setattr(stream, "Stream", fake)
    options = SimpleNamespace(target=[record], configfile=None, window=1)
    with pytest.raises(Refused, match=f"{ranks}: written, but on no record"):
        stream.run(tmp_path, options)
    assert runs == [(1, 1)]
