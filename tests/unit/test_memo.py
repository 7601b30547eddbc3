"""A file's digest is remembered for one state of one file on one file system, once it is on the disk."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT, needs_mounts
from ingot.base import digest, memo
from ingot.model.checkpoint import identity


def test_a_memo_of_another_boot_is_not_believed_until_the_file_was_on_the_disk(
    filled, tmp_path, monkeypatch
):
    file = tmp_path / "m.gguf"
    partial = tmp_path / "p"
    partial.write_bytes(b"weights" * 300_000)  # not small
    digest.finished(partial, file)
    right = memo.known(file)
    assert right == f"sha256:{hashlib.sha256(b'weights' * 300_000).hexdigest()}"
    monkeypatch.setattr(memo, "this_boot", lambda: "the boot after the crash")
    monkeypatch.setattr(memo, "_here", {})
    assert memo.known(file) is None
    assert digest.of(file) == right == memo.known(file)  # read, and synced
    monkeypatch.setattr(memo, "this_boot", lambda: "one more boot")
    monkeypatch.setattr(memo, "_here", {})
    assert memo.known(file) == right


def test_what_was_persisted_is_believed_after_any_boot(filled, monkeypatch):
    (record,) = filled.records()
    big = Path("big")
    big.write_bytes(b"x" * 2_000_000)
    name = filled.take(big)["digest"]
    filled.persist_files(record)
    filled.persist(name)
    monkeypatch.setattr(memo, "this_boot", lambda: "another")
    monkeypatch.setattr(memo, "_here", {})
    monkeypatch.setattr(digest, "read", lambda path: pytest.fail(f"{path} was read"))
    assert filled.has(name) and memo.known(big) == name


def edited(file):
    """Its last four bytes, in place; size, modification time and mode as before, as hex editors can."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-4, os.SEEK_END)
        opened.write(b"edit")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    same = ("st_ino", "st_size", "st_mtime_ns", "st_mode")
    assert [getattr(after, one) for one in same] == [getattr(before, one) for one in same]


@pytest.mark.parametrize("process", ["this", "another"])
def test_an_edit_that_puts_the_modification_time_back_is_seen(
    process, store, tmp_path, monkeypatch
):
    """By a file's ctime alone: no program can set that back."""
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    whole, tensors = digest.of(file), identity.of(file)
    assert (memo.known(file), identity.known(file)) == (whole, tensors), (
        "there is what may go stale"
    )
    edited(file)
    if process == "another":
        monkeypatch.setattr(memo, "_here", {})
    assert memo.known(file) is None and identity.known(file) is None
    assert digest.of(file) != whole and identity.of(file) != tensors


def test_a_stamp_in_whole_seconds_is_not_believed(store, tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text("{}")
    where = memo.stamp_of(file).partition("-")[0]
    mtime, ctime = 1_795_601_325_000_000_000, 1_795_601_326_000_000_000
    times = {"st_mtime_ns": mtime, "st_ctime_ns": ctime}
    state = {"st_dev": file.stat().st_dev, "st_ino": 5, "st_size": 2, "st_mode": 0o100644, **times}
    stamp = memo.stamp(file, SimpleNamespace(**state))
    assert stamp == f"{where}-5-2-{mtime:x}-{ctime:x}", "as docs/store.md says"
    memo.remember(stamp, f"sha256:{'a' * 64}", durable=True)
    assert memo.recall(stamp) is None and not list(store.glob("memo/*/*"))


def test_two_file_systems_do_not_share_a_memo(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text("{}")
    first = memo.stamp_of(file)
    monkeypatch.setattr(memo, "_file_systems", {file.stat().st_dev: "another"})
    assert memo.stamp_of(file) != first
    assert memo.stamp_of(file).partition("-")[2] == first.partition("-")[2]


def test_nothing_on_a_memory_file_system_is_remembered_for_others(store, tmp_path, monkeypatch):
    shm = Path("/dev/shm")
    if not shm.is_dir() or memo._mount(shm.stat().st_dev, str(shm))[0] != "tmpfs":
        pytest.skip("needs a tmpfs at /dev/shm")
    file = shm / f"ingot-test-{os.getpid()}"
    try:
        file.write_text("a")
        digest.of(file)
        assert memo.known(file)  # this process read it
        assert not list(store.glob("memo/*/*"))
    finally:
        file.unlink()


IN_MEMORY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingot.base import memo
for name in ("one", "two", "over/merged"):
    file = Path(sys.argv[2], name, "file")
    file.write_text("a")
    print(memo.stamp_of(file).partition("-")[0])
"""


@needs_mounts
def test_two_memories_share_no_stamp_and_an_overlay_of_memory_is_known_as_memory(tmp_path):
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec",
         'cd "$1"; mkdir one two over; for place in one two over; do mount -t tmpfs none $place; done; '
         "cd over; mkdir lower upper work merged; mount -t overlay "
         "-o lowerdir=lower,upperdir=upper,workdir=work,userxattr none merged; "
         'exec "$2" -c "$3" "$4" "$1"', "sh",
         str(tmp_path), sys.executable, IN_MEMORY, str(ROOT / "scripts")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert len(set(names)) == 3 and all(name.startswith("memory") for name in names), names


def test_a_file_system_whose_ctime_can_be_set_back_is_not_believed(tmp_path, monkeypatch):
    """As those of FUSE that give mtime for ctime: bindfs, rclone, s3fs."""
    monkeypatch.setattr(memo, "_file_systems", {})
    monkeypatch.setattr(memo, "_mount", lambda device, path: ("fuse.bindfs", "x"))
    file = tmp_path / "file"
    file.write_text("a")
    assert not memo.stamp_of(file).startswith("memory"), "the times of this disk tell"
    monkeypatch.setattr(memo, "_file_systems", {})
    real = os.fstat

    def same(number):
        found = real(number)
        times = {"st_mtime_ns": found.st_mtime_ns, "st_ctime_ns": found.st_mtime_ns}
        more = {"st_size": found.st_size, "st_dev": found.st_dev}
        return SimpleNamespace(**times, st_atime_ns=found.st_atime_ns, **more)

    monkeypatch.setattr(memo.os, "fstat", same)
    assert memo.stamp_of(file).startswith("memory")


def test_a_memo_that_power_loss_left_full_of_zeros_is_none(filled, monkeypatch):
    big = Path("big")
    big.write_bytes(b"x" * 2_000_000)
    digest.of(big)
    monkeypatch.setattr(memo, "_here", {})
    memo._memo(filled.root, memo.stamp_of(big)).write_bytes(bytes(71))
    assert memo.known(big) is None
