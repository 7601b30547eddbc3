"""`ingot store dedupe`: equal blocks of two files lie on the disk once, where the file system can."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.driver.commands import store as command
from ingot.store import dedupe
from ingot.store.records import Store

BLOCK = dedupe.BLOCK
MANY = 100  # blocks of a file


def blob(store, text):
    store.blobs.mkdir(parents=True, exist_ok=True)
    path = store.blob(f"sha256:{hashlib.sha256(text).hexdigest()}")
    path.write_bytes(text)
    path.chmod(0o444)
    return path


def changed(text, *blocks):
    found = bytearray(text)
    for number in blocks:
        found[number * BLOCK] ^= 1
    return bytes(found)


def test_what_is_shared_are_runs_of_equal_blocks(tmp_path):
    text = os.urandom(5 * BLOCK + 7)
    for name, content in (("a", text), ("b", changed(text, 0, 3))):
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "a").open("rb") as a, (tmp_path / "b").open("rb") as b:
        found = [*dedupe.equal_runs(a, b, Progress("", 1))]
    assert found == [(BLOCK, 3 * BLOCK), (4 * BLOCK, 5 * BLOCK + 7)]


def test_files_of_one_size_are_paired_by_what_they_hold(tmp_path):
    """Seven ranks of a base, and those of its fine-tune: one size, and each its own partner."""
    texts = [os.urandom(MANY * BLOCK) for _ in range(3)]
    texts += [changed(text, 1, 2) for text in texts]
    paths = [tmp_path / str(number) for number in range(6)]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    found = [(one.name, other.name) for one, other in dedupe.paired(paths)]
    assert found == [("0", "3"), ("1", "4"), ("2", "5")]


def test_a_file_system_that_cannot_is_named(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    text = os.urandom(MANY * BLOCK)
    first = blob(store, text)
    blob(store, changed(text, 50))

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(dedupe.fcntl, "ioctl", refuse)
    with pytest.raises(Refused, match="cannot share blocks of two files, expected XFS or btrfs"):
        dedupe.dedupe(store)
    assert first.read_bytes() == text


def test_nothing_to_share_is_said(tmp_path, capsys):
    store = Store(tmp_path / "store")
    blob(store, os.urandom(2 << 20))
    command.show_dedupe(dedupe.dedupe(store))
    assert "0 files share 0.0 MB" in capsys.readouterr().out


def test_a_blob_is_made_again_of_a_clone_and_what_differs(tmp_path, monkeypatch):
    """As btrfs needs it; a copy stands for the clone."""
    store = Store(tmp_path / "store")
    text = os.urandom(MANY * BLOCK + 5)
    others = (changed(text, 0, 7, 99), changed(text, 100), changed(text, 50, 51))
    monkeypatch.setattr(dedupe.memo, "kind_of", lambda _: "btrfs")
    monkeypatch.setattr(
        dedupe.digest, "cloned", lambda source, target: bool(shutil.copyfile(source, target))
    )
    first, paths = blob(store, text), [blob(store, other) for other in others]
    for path, other in zip(paths, others, strict=True):
        before = path.stat().st_ino
        dedupe.share(store, first, path, Progress("", 1))
        assert path.read_bytes() == other and path.stat().st_mode & 0o777 == 0o444
        assert path.stat().st_ino != before and store.has(f"sha256:{path.name}")


@pytest.mark.root("a loop device")
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_fine_tune_takes_what_it_changed(kind):
    if not shutil.which(f"mkfs.{kind}"):
        pytest.skip(f"no mkfs.{kind}")
    with tempfile.TemporaryDirectory() as name:
        image, place = Path(name, "image"), Path(name, "mounted")
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(400 << 20)
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
        try:
            store = Store(place / "store")
            text = os.urandom(20 << 20)
            two = [blob(store, text), blob(store, changed(text, 100))]
            before = free(place)
            assert dedupe.dedupe(store)["bytes_shared"] == (20 << 20) - BLOCK
            assert free(place) - before >= 19 << 20
            for path in two:
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        finally:
            subprocess.run(["umount", place], check=True)


def free(place):
    os.sync()
    found = os.statvfs(place)
    return found.f_bfree * found.f_frsize
