"""Bytes to disk: whole under their names, hashed once, in any number of threads."""

import _thread
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest


def test_an_error_in_making_the_jobs_is_no_success():
    from ingot.base.stream import in_threads

    def jobs():
        yield lambda: None
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        in_threads(jobs())


def test_no_job_outlives_an_interrupt_even_of_a_threads_start(monkeypatch):
    """A thread runs before its `start` returns; a signal in between left it running, refused by `join`."""
    from ingot.base.stream import in_threads

    begun, told, ended = threading.Event(), threading.Event(), []

    def start(thread):
        _thread.start_new_thread(thread.run, ())
        begun.wait(60)
        raise KeyboardInterrupt

    def job():
        begun.set()
        told.wait(60)
        ended.append("one")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        in_threads([job] * 9, [SimpleNamespace(stop=told.set)])
    assert ended == ["one"]


def test_what_a_killed_process_left_is_removed_and_a_running_ones_is_not(tmp_path):

    from ingot.base.atomic import replacing

    (tmp_path / ".m.gguf.999999999.partial").write_bytes(b"dead")
    (tmp_path / f".m.gguf.{os.getppid()}.partial").write_bytes(b"alive")
    with replacing(tmp_path / "m.gguf") as partial:
        partial.write_bytes(b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".m.gguf.{os.getppid()}.partial", "m.gguf",
    ]  # fmt: skip


def test_every_bfloat16_becomes_the_float16_that_numpy_says():
    from ingot.model.tensors.cast import Caster

    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[(bits & 0x7FFF) <= 0x7F80]  # NaNs are refused before
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        expected = wide.astype(np.float16).view(np.uint16)
    assert np.array_equal(Caster("BF16", "F16")(bits), expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_sees_every_nan_and_infinity(dtype):
    from ingot.model.tensors.cast import INFINITY, not_finite
    from ingot.model.tensors.dtypes import FLOATS

    infinity, sign = INFINITY[dtype], 1 << (8 * FLOATS[dtype].itemsize - 1)
    nans = (infinity + 1, sign - 1, (infinity | sign) + 1, 2 * sign - 1)
    odd = {**dict.fromkeys(nans, "NaN"), infinity: "infinity", infinity | sign: "infinity"}
    for bits in (*odd, 0, sign, infinity - 1, (infinity | sign) - 1):
        found = not_finite(np.array([0, bits, 0], FLOATS[dtype].bits), dtype)
        assert found == odd.get(bits), hex(bits)


def test_a_writer_that_hashed_is_believed_and_its_file_not_read_again(tmp_path, store, monkeypatch):
    from ingot.base import digest, memo
    from ingot.base.atomic import replacing_hashed

    monkeypatch.setattr(digest, "read", lambda path: pytest.fail(f"{path} was read again"))
    with replacing_hashed(tmp_path / "m.gguf") as partial:
        partial.path.write_bytes(b"whole")
        partial.sha256 = "ab" * 32
    assert memo.known(tmp_path / "m.gguf") == "sha256:" + "ab" * 32


def test_a_sealed_folder_is_checked_line_by_line(tmp_path, store):
    from ingot.base import sealed
    from ingot.base.refused import Refused

    (tmp_path / "f/deep").mkdir(parents=True)
    (tmp_path / "f/a").write_text("a")
    (tmp_path / "f/deep/b").write_text("b")
    sealed.seal(tmp_path / "f")
    assert (tmp_path / "f/SHA256SUMS").read_text().splitlines()[1].endswith("  deep/b")
    before = sealed.sealed(tmp_path / "f")
    (tmp_path / "f/deep/b").write_text("c")
    with pytest.raises(Refused, match=r"f/deep/b: its bytes are not those of SHA256SUMS"):
        sealed.sealed(tmp_path / "f")
    (tmp_path / "f/deep/b").write_text("b")
    assert sealed.sealed(tmp_path / "f") == before
    (tmp_path / "f/more").write_text("")
    with pytest.raises(Refused, match=r"f/more: in the folder or in SHA256SUMS, not in both"):
        sealed.sealed(tmp_path / "f")


def test_a_folder_is_held_against_its_plan_file_by_file(tmp_path, store):
    from ingot.base import sealed
    from ingot.base.refused import Refused

    (tmp_path / "part").write_text("part")
    plan = {
        "deep/a": tmp_path / "part",
        "b": sealed.Ours(tmp_path / "part"),
        "serve": "#!/bin/sh\n",
    }
    folder = tmp_path / "f"
    folder.mkdir()
    sealed.fill(folder, plan)
    assert sealed.hold(folder, plan) == 3 and sealed.sealed(folder)
    assert os.access(folder / "serve", os.X_OK) and (folder / "b").samefile(tmp_path / "part")
    (folder / "serve").chmod(0o644)
    with pytest.raises(Refused, match="f/serve: not executable"):
        sealed.hold(folder, plan)
    (folder / "deep/a").write_text("trap")
    with pytest.raises(Refused, match=r"f/deep/a: its bytes differ, expected those of .*/part"):
        sealed.hold(folder, plan)
    (folder / "b").unlink()
    with pytest.raises(Refused, match="f/b: missing, expected a part"):
        sealed.hold(folder, plan)
    for make in (Path.mkdir, lambda path: path.symlink_to(tmp_path)):
        make(folder / "2")
        with pytest.raises(Refused, match="f/2: not part of what was assembled"):
            sealed.hold(folder, plan)
        if not (folder / "2").is_symlink():
            (folder / "2").rmdir()


def test_progress_is_silent_on_a_log_for_short_work_and_a_tenth_a_line_for_long(
    capsys, monkeypatch
):
    from ingot.base import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    short = progress.Progress("short", 100)
    short.add(100)
    assert not capsys.readouterr().err
    long = progress.Progress("long", 100)
    for _ in range(100):
        now[0] += 1
        long.add(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10 and lines[-1].startswith("long: 100 %")
    counted = progress.Progress("counted", 4, "windows")
    now[0] += 8
    counted.add(1)
    assert capsys.readouterr().err == "counted:  25 %  1 of 4 windows  24 s left\n"


def test_a_toolchains_words_go_to_the_log_and_come_back_afterwards(capfd):
    from ingot.base.console import stderr_to_log

    with stderr_to_log("work"):
        os.write(2, b"from C\n")
        os.write(1, b"its output\n")
    os.write(2, b"ours\n")
    out, err = capfd.readouterr()
    assert "from C" in out and "its output" in out and err == "ours\n"


def test_long_work_says_how_far_it_is(capfd, monkeypatch):
    """Its progress goes to the log with all else: nobody saw how far an hour of work was."""
    from ingot.base import console, progress

    monkeypatch.setattr(console, "BEAT", 0.01)
    said = {}
    for name in ("uncounted", "counted"):
        with console.stderr_to_log(name):
            if name == "counted":
                progress.Progress("windows", 4, "windows").add(1)
            while name not in (text := capfd.readouterr().err):
                pass
        said[name] = text.splitlines()[0]
    assert said["uncounted"] == "uncounted: 0 s so far"
    assert re.fullmatch(r"counted:  25 %  1 of 4 windows  \d+ s left", said["counted"])


def test_a_layout_knows_head_entries_and_size():
    from ingot.model.tensors.layout import FileLayout

    assert FileLayout(b"head", ["a"], 64).texts == {}
