"""Whose an output is: a step of a run that was overtaken puts nothing in place."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingot.base import claim
from ingot.base.atomic import partial_of, replacing
from ingot.base.refused import Refused
from ingot.driver.cache.contents import stamps


@pytest.fixture
def of_run(tmp_path, monkeypatch):
    """of_run("a") makes this process a step of run a, in a folder where notes are kept."""
    monkeypatch.setenv("INGOT_NOTES", str(tmp_path / "notes"))
    return lambda run: monkeypatch.setenv("INGOT_RUN", run)


def test_a_step_says_which_file_it_put_in_place_and_for_whom(of_run, tmp_path):
    of_run("a")
    path = tmp_path / "m.gguf"
    claim.claim(path, {"run": "a"})
    with replacing(path) as partial:
        partial.write_bytes(b"a")
    assert claim.given(path, "a") and not claim.given(path, "b")
    assert claim.left(path)["peak_rss"] > 1e6
    path.unlink()
    path.write_bytes(b"a")
    assert not claim.given(path, "a"), "the same bytes, but not the file that the step put there"


def test_a_folder_stays_the_one_that_was_put_there_when_a_file_is_added(of_run, tmp_path):
    of_run("a")
    with replacing(tmp_path / "bundle") as partial:
        partial.mkdir()
    (tmp_path / "bundle/.snakemake_timestamp").touch()
    assert claim.given(tmp_path / "bundle", "a")


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_step_whose_output_another_run_has_claimed_puts_nothing_in_place(
    moment, of_run, tmp_path
):
    of_run("old")
    path = tmp_path / "m.gguf"
    claim.claim(path, {"run": "new" if moment == "before" else "old"})
    with (
        pytest.raises(Refused, match="another run of Snakemake builds it now"),
        replacing(path) as part,
    ):
        part.write_bytes(b"of the old run")
        claim.claim(path, {"run": "new"})
    assert [one.name for one in tmp_path.iterdir()] == ["notes"]


def test_a_claim_forgets_who_put_something_there_before(of_run, tmp_path):
    of_run("a")
    path = tmp_path / "m"
    with replacing(path) as partial:
        partial.write_bytes(b"a")
    claim.claim(path, {"run": "b"})
    path.write_bytes(b"by a step that says nothing")
    assert claim.given(path, "b")
    claim.add(path, {"slurm": "7"})
    assert claim.claimed(path) == {"run": "b", "slurm": "7"}


def test_a_damaged_note_is_none(of_run, tmp_path):
    of_run("a")
    path = tmp_path / "m"
    claim.claim(path, {"run": "b"})
    for note in (tmp_path / "notes").iterdir():
        note.write_text("[1")
    assert claim.claimed(path) == {}
    claim.stop_if_taken(path)


def test_by_hand_nothing_is_noted(tmp_path, monkeypatch):
    monkeypatch.delenv("INGOT_NOTES", raising=False)
    with replacing(tmp_path / "m") as partial:
        partial.write_bytes(b"")
    assert [one.name for one in tmp_path.iterdir()] == ["m"]


def test_another_nodes_partial_is_an_earlier_try_once_a_run_has_claimed_the_output(
    of_run, tmp_path, monkeypatch
):
    path = tmp_path / "m.gguf"
    of_run("a" * 16)
    with monkeypatch.context() as there:
        there.setattr("platform.node", lambda: "another")
        left = tmp_path / f".{path.name}.{claim.writer()}.{os.getppid()}.partial"  # it lives here
    left.touch()
    with partial_of(path) as mine:
        assert left.exists() and mine.name != left.name.replace(str(os.getppid()), str(os.getpid()))
    claim.claim(path, {"run": "a" * 16})
    with partial_of(path):
        assert not left.exists(), "of a try that was killed, or of a run that was overtaken"


def test_an_edit_that_is_taken_back_is_one_and_another_name_of_an_artifact_is_none(
    tmp_path, monkeypatch
):
    """The store links artifacts at any time."""
    monkeypatch.chdir(tmp_path)
    names = ("artifacts/m.gguf", "code.py")
    Path("artifacts").mkdir()
    jobs = [SimpleNamespace(reads=[name], ancient=lambda _: False) for name in names]
    for name in names:
        Path(name).write_text("one")
    before = [stamps(job) for job in jobs]
    os.link(names[0], "link")
    assert [stamps(job) for job in jobs] == before
    times = Path(names[1]).stat()
    for text in ("two", "one"):
        for name in names:
            Path(name).write_text(text)
    os.utime(names[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert all(stamps(job) != was for job, was in zip(jobs, before, strict=True))
