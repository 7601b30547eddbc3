"""A user's own file where an artifact goes is moved aside and named."""

import os
from pathlib import Path

import pytest

from ingot.base import claim, digest, durable
from ingot.store import aside
from ingot.store.records import Store


def test_a_users_own_file_is_moved_aside_and_named(filled, capsys):
    own = Path("artifacts/demo.gguf")
    own.write_bytes(b"mine")
    aside.keep(filled, str(own))
    (moved,) = Path("artifacts").glob("demo.gguf.yours-*")
    assert moved.read_bytes() == b"mine" and not own.exists()
    assert f"moved to {moved}" in capsys.readouterr().err


def test_a_file_added_to_an_artifacts_folder_is_kept_with_it(filled):
    Path("artifacts/f/NOTES.txt").write_text("mine")
    aside.keep(filled, "artifacts/f")
    (moved,) = Path("artifacts").glob("f.yours-*")
    assert (moved / "NOTES.txt").read_text() == "mine"


def test_what_the_store_has_or_this_folder_built_is_nobodys_own(filled):
    aside.keep(filled, "artifacts/f")
    built = Path("artifacts/m.gguf")
    built.write_bytes(b"built beside a read-only store")
    aside.note(str(built), digest.of(built))
    aside.keep(filled, str(built))
    assert not list(Path("artifacts").glob("*.yours-*"))


def test_a_link_into_a_store_that_was_moved_is_nobodys_own(filled, tmp_path):
    built = Path("artifacts/m.gguf")
    name = filled.blob(digest.of(Path("artifacts/f/tool"))).name
    for known in (name, "ab" * 32):
        built.unlink(missing_ok=True)
        built.symlink_to(tmp_path / "before/blobs/sha256" / known)
        aside.keep(filled, str(built))
    (moved,) = Path("artifacts").glob("*.yours-*")
    assert moved.readlink().name == "ab" * 32, "whose bytes nobody has"


def test_a_link_into_the_store_of_before_is_nobodys_own(filled, tmp_path):
    """After INGOT_STORE was changed, each artifact of the folder was moved aside."""
    other, built = Store(tmp_path / "other"), Path("artifacts/m.gguf")
    assert other.prepare()
    built.write_bytes(b"what that store alone has")
    other.put(built, digest.of(built))
    blob = other.blob(digest.of(built))
    for target in (blob, tmp_path / "a user's/blobs/sha256" / blob.name):
        built.unlink(missing_ok=True)
        built.symlink_to(target)
        aside.keep(filled, str(built))
    (moved,) = Path("artifacts").glob("*.yours-*")
    assert moved.readlink() != blob and blob.exists()


def test_what_a_step_put_there_is_ours_until_somebody_changes_it(filled, monkeypatch):
    """Its run was lost, its inputs were edited: 812 GB of a 405B were kept as "yours"."""
    monkeypatch.setenv("INGOT_NOTES", str(Path("notes").absolute()))
    monkeypatch.setenv("INGOT_RUN", "lost")
    for name, edit in (("a.irpa", False), ("b.irpa", True)):
        built = Path("artifacts") / name
        built.write_bytes(b"of the former inputs")
        claim.leave(built, built)
        claim.placed(built)
        times = built.stat()
        if edit:
            built.write_bytes(b"of the hand's inputs")  # as long, and as old to all who ask
            os.utime(built, ns=(times.st_atime_ns, times.st_mtime_ns))
        aside.keep(filled, str(built))
    assert [one.name[:12] for one in Path("artifacts").glob("*.yours-*")] == ["b.irpa.yours"]


def test_a_folder_is_ours_until_a_file_in_it_changes(filled, monkeypatch):
    """By its inode alone an edited one was taken for what the step of a killed run had put there."""
    monkeypatch.setenv("INGOT_NOTES", str(Path("notes").absolute()))
    built = Path("artifacts/m.trtllm-ckpt")
    built.mkdir()
    file = built / "config.json"
    file.write_bytes(b"as built")
    claim.leave(built, built)
    assert not claim.untouched(built), "nobody has said that it stands there"
    claim.placed(built)
    assert claim.untouched(built)
    times = file.stat()
    file.write_bytes(b"by hand!")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not claim.untouched(built)


def test_durable_reads_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        durable.regular_bytes(tmp_path / "fifo")
