"""How many jobs run at once on one machine: what its memory holds, by their forecasts."""

import re

import pytest

from ingot.base import machine
from ingot.driver.snakemake import memory

TWO = ("artifacts/demo.bf16.gguf", "artifacts/demo.f32.gguf")  # of 40 MB each, by forecast


def order(said):
    """start and done lines of the two, in their order."""
    return re.findall(r"^(start|done) +artifacts/demo\.(?:bf16|f32)\.gguf ", said, re.M)


@pytest.mark.parametrize("most, wanted", [
    ([], ["start", "start", "done", "done"]),
    (["--resources", "mem_mb=60"], ["start", "done", "start", "done"]),
    (["--resources", "mem_mb=5"], ["start", "done", "start", "done"]),  # less than one takes
])  # fmt: skip
def test_jobs_that_do_not_fit_side_by_side_wait(clone, build, most, wanted):
    folder = clone("a")
    assert order(build(folder, *most, "--", *TWO)) == wanted


def test_a_small_machine_does_one_after_another_and_says_what_is_too_large(
    clone, store, tmp_path, snakemake, monkeypatch
):
    """As on a machine of 60 MB, and of 30: by the files that the kernel has."""
    for megabytes, alone in ((60, False), (30, True)):
        (tmp_path / "free").write_text(f"MemAvailable: {megabytes * 1000} kB\n")
        (tmp_path / "limit").write_text(f"{megabytes * 10**6}\n")
        patch = f"""
from pathlib import Path
from ingot.base import machine
machine.FREE, machine.LIMIT = Path({str(tmp_path / "free")!r}), Path({str(tmp_path / "limit")!r})
"""
        folder = clone(f"m{megabytes}")
        snakefile = folder / "Snakefile"
        snakefile.write_text(patch + snakefile.read_text())
        place = {"INGOT_STORE": str(tmp_path / f"store{megabytes}")}
        done = snakemake(folder, "-s", snakefile, "--", *TWO, environment=place)
        assert done.returncode == 0, done.stderr
        assert order(done.stderr) == ["start", "done", "start", "done"]
        said = re.search(
            r"demo\.\w+\.gguf: takes some 40 MB of memory, and this machine has 30", done.stderr
        )
        assert bool(said) == alone, done.stderr


def test_what_a_machine_has_free_is_within_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LIMIT", tmp_path / "none")
    assert 0 < machine.available() <= machine.memory()
    (tmp_path / "limit").write_text("1000000\n")
    monkeypatch.setattr(machine, "LIMIT", tmp_path / "limit")
    assert machine.available() == machine.memory() == 1_000_000
    monkeypatch.setattr(machine, "FREE", tmp_path / "none")
    assert machine.available() == 1_000_000
    assert memory.larger([]) == memory.larger([("a", 10**6)]) == ""
    assert memory.larger([("a", 1), ("b", 3 * 10**6)]).startswith("b: takes some 3 MB of memory")
