"""A CI matrix from what a dry run says: who is in whose cell, in which layer, on what."""

import pytest

from ingot.driver.forecast import cells


def job(output, *inputs, seconds=10.0, memory=1e9, gpus=0, action="run"):
    forecast = {"seconds": seconds, "memory": memory, "files": {output: 1e6}}
    named = {"rule": "r", "outputs": [output], "inputs": list(inputs), "gpus": gpus}
    return {**named, "action": action, "forecast": forecast}


def of(target):
    return target[0], target.partition(".")[2], "sm90"


def names(layers):
    return {layer: [cell["targets"] for cell in found] for layer, found in layers.items()}


def test_long_work_that_several_need_comes_first_and_a_gpus_last():
    jobs = [
        job("m.weights", seconds=500), job("m.gguf", "m.weights"), job("m.irpa", "m.weights"),
        job("m.trtllm", "m.weights", gpus=2),
    ]  # fmt: skip
    found = cells.cells(jobs, ["m.gguf", "m.irpa", "m.trtllm"], of)
    assert names(found) == {
        "shared": ["m.weights"], "build": ["m.gguf", "m.irpa"], "engines": ["m.trtllm"],
    }  # fmt: skip
    assert found["shared"][0]["timeout"] == 30 + 25 and found["build"][0]["timeout"] == 31
    assert found["engines"][0]["runner"] == "sm90" and found["engines"][0]["gpus"] == 2


def test_many_short_downloads_that_are_long_together_are_done_once():
    files = [job(f"m.{n}", seconds=40) for n in range(10)]
    inputs = [one["outputs"][0] for one in files]
    jobs = [*files, job("m.gguf", *inputs), job("m.irpa", *inputs)]
    assert names(cells.cells(jobs, ["m.gguf", "m.irpa"], of))["build"] == ["m.gguf m.irpa"]


def test_short_work_is_sooner_done_twice():
    jobs = [job("m.config", seconds=2), job("m.gguf", "m.config"), job("m.irpa", "m.config")]
    found = names(cells.cells(jobs, ["m.gguf", "m.irpa"], of))
    assert found == {"shared": [], "build": ["m.gguf", "m.irpa"], "engines": []}


def test_what_is_on_record_is_in_no_cell():
    jobs = [job("m.gguf", action="restore"), job("m.irpa", "m.gguf", action="none")]
    assert not any(cells.cells(jobs, ["m.gguf", "m.irpa"], of).values())


def test_a_record_is_in_the_cell_of_what_it_verifies():
    record = "m.gguf.verified.json"
    found = cells.cells([job("m.gguf"), job(record, "m.gguf")], ["m.gguf", record], of)
    assert names(found)["build"] == [f"m.gguf {record}"]


@pytest.mark.parametrize("count, together", [(cells.MOST, 1), (cells.MOST + 1, cells.MOST + 1)])
def test_beyond_256_what_is_alike_is_in_one_cell(count, together):
    targets = [f"m{n}.gguf" for n in range(count)]
    found = cells.cells([job(target) for target in targets], targets, of)["build"]
    assert len(found[0]["targets"].split()) == together


def test_what_a_lent_runner_has_no_room_for_is_for_one_with_much_memory():
    (cell,) = cells.cells([job("m.gguf", memory=40e9)], ["m.gguf"], of)["build"]
    assert cell["runner"] == "bigmem"


def test_a_target_that_others_need_is_named_in_the_cell_that_builds_it():
    jobs = [
        job("m.gguf", seconds=90), job("m.big", "m.gguf", seconds=90), job("m.a", "m.big"),
        job("m.b", "m.big"),
    ]  # fmt: skip
    found = names(cells.cells(jobs, ["m.gguf", "m.a", "m.b"], of))
    assert found["shared"] == ["m.big m.gguf"] and found["build"] == ["m.a", "m.b"]


def test_a_job_without_a_forecast_still_needs_its_gpu():
    engine = {**job("m.trtllm", gpus=1), "forecast": None}
    assert names(cells.cells([engine], ["m.trtllm"], of))["engines"] == ["m.trtllm"]
