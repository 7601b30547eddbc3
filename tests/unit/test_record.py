"""What a step says of itself, and what a run reads of it."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from conftest import ROOT
from ingot.base import record, steps

STEP = """
    import sys, time
    sys.path.insert(0, {scripts!r})
    from ingot.base import entry
    from ingot.base.refused import Refused
    from ingot.base.progress import Progress

    def main():
        progress = Progress("m.gguf", 1000)
        progress.add(250)
        time.sleep(1.5)
        {end}

    entry.run(main)
"""
OUTPUT = "artifacts/m.gguf"


@pytest.fixture
def step(tmp_path, monkeypatch):
    """step(last line) starts one, as a run whose name is `r` would."""
    monkeypatch.chdir(tmp_path)
    ours = {"INGOT_NOTES": str(tmp_path / ".ingot/notes"), "INGOT_RUN": "r", "INGOT_SHOWN": "lines"}

    def start(end, **environment):
        text = textwrap.dedent(STEP.format(scripts=str(ROOT / "scripts"), end=end))
        return subprocess.Popen(
            [sys.executable, "-c", text, "--gguf", OUTPUT], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **ours, **environment},
        )  # fmt: skip

    return start


def refused():
    return steps.read([OUTPUT])[OUTPUT].refused


def test_how_far_it_is_and_what_it_takes_can_be_read_while_it_runs(step):
    process, end = step("return None"), time.monotonic() + 20
    while not (found := steps.read([OUTPUT, "another"]).get(OUTPUT)) or not found.total:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (found.done, found.total, found.what, found.unit) == (250, 1000, "m.gguf", "")
    assert 5e6 < found.memory <= found.peak < 1e9 and found.rate > 0
    assert process.wait(20) == 0
    assert not steps.read([OUTPUT]), "one that is done leaves nothing"


def test_why_it_failed_is_left_and_not_printed_twice(step):
    process = step('raise Refused("m.gguf: 3 tensors, expected 4; fetch it again")')
    assert process.communicate(timeout=20)[1] == "" and process.returncode == 1
    assert refused() == "m.gguf: 3 tensors, expected 4; fetch it again"
    by_hand = step('raise Refused("m.gguf: 3 tensors")', INGOT_RUN="")
    assert by_hand.communicate(timeout=20)[1] == "m.gguf: 3 tensors\n"


def test_a_fault_of_ours_and_too_little_memory_are_one_line_too(step):
    step("return {}['missing']").communicate(timeout=20)
    assert refused() == "KeyError: 'missing'"
    steps.close("r")
    step("bytearray(1 << 50)").communicate(timeout=20)
    assert refused().startswith("out of memory")


def test_of_two_tries_the_younger_counts_and_the_older_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, run in ((100, "old"), (0, "new")):
        place = steps.NOTES / run / "h-1.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"words": [OUTPUT], "refused": run}))
        os.utime(place, (time.time() - age,) * 2)
    assert refused() == "new"
    steps.forget([OUTPUT])
    assert not steps.read([OUTPUT])


def test_a_program_that_a_step_starts_prints_its_own_reason(step):
    nested = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); from ingot.base import entry; "
    )
    nested += "from ingot.base.refused import Refused; entry.run(lambda: 1 / 0)"
    process = step(f"__import__('subprocess').run([sys.executable, '-c', {nested!r}])")
    assert "ZeroDivisionError" in process.communicate(timeout=20)[1]


def test_notes_that_cannot_be_written_fail_no_step(step, tmp_path):
    (tmp_path / "file").write_text("")
    process = step("return None", INGOT_NOTES=str(tmp_path / "file/notes"))
    assert process.wait(20) == 0


def test_what_is_no_record_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = steps.NOTES / "r"
    place.mkdir(parents=True)
    for number, text in enumerate(("", "{", "[]", '{"words": 1}', '{"words": ["a"], "x": 1}')):
        (place / f"{number}.json").write_text(text)
    assert steps.read(["a"]) == {}
    assert record.shown() == ""
