"""Who needs what of the store: working folders, running builds, other users; and who waits for whom."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from conftest import KEY
from ingot.base import shared
from ingot.base.refused import Refused
from ingot.store import gc, leases, locks
from ingot.store.fsck import fsck
from ingot.store.records import Action, Store


def age(store):
    for pointer in store.root.glob("actions/*/*"):
        os.utime(pointer, (time.time() - 90 * 86400,) * 2)


def test_gc_keeps_what_an_unseen_folder_asked_for_until_it_is_forgotten(filled, tmp_path):
    Path("work/artifacts").mkdir(parents=True)
    os.chdir("work")
    leases.hold(filled, [KEY]).close()
    os.chdir(tmp_path)
    shutil.rmtree("artifacts")
    Path("work").rename("elsewhere")  # as when a disk is unmounted
    age(filled)
    found = gc.collect(filled, 30, {}, False)
    assert found["records_dropped"] == [] and found["unseen_folders"] == [str(tmp_path / "work")]
    Path("work").mkdir()  # the empty mount point
    assert gc.collect(filled, 30, {}, False)["records_dropped"] == []
    forget = [str(tmp_path / "work")]
    assert gc.collect(filled, 30, {}, False, forget)["records_dropped"] == ["f"]
    with pytest.raises(Refused, match="not among the working folders"):
        gc.collect(filled, 30, {}, False, forget)


def test_gc_knows_this_machine_under_any_host_name(filled, monkeypatch):
    leases.hold(filled, [KEY]).close()
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "another")
    age(filled)
    assert gc.collect(filled, 30, {}, False)["records_dropped"] == []
    monkeypatch.setattr(leases, "machine", lambda: "another machine")
    assert gc.collect(filled, 30, {}, False)["records_dropped"] == []


def test_gc_keeps_the_records_that_a_kept_one_was_made_from(filled):
    (source,) = filled.records()
    made = Path("artifacts/m.irpa")
    made.write_bytes(b"made")
    inputs = {"gguf": source.outputs[0]["digest"], "code": [["a.py", "sha256:" + "0" * 64]]}
    outputs = [{**filled.take(made), "title": "m.irpa"}]
    filled.record(Action("next", "cd" * 32, {"inputs": inputs}, outputs, {}, {}))
    shutil.rmtree("artifacts/f")
    leases.hold(filled, []).close()
    age(filled)
    found = gc.collect(filled, 30, {}, False)
    assert found["records_dropped"] == [] and found["blobs_dropped"] == 2  # of the folder's files
    assert {record.title for record in filled.records()} == {"m.irpa", "f"}


def test_two_containers_of_one_pid_have_a_lease_each(filled, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 7)
    first, second = leases.hold(filled, ["a" * 64]), leases.hold(filled, ["b" * 64])
    assert sorted(one["keys"][0][0] for one in leases.alive(filled)) == ["a", "b"]
    assert not list(leases.alive(filled, but_ours=True))
    first.close(), second.close()
    assert not list(leases.alive(filled))


def test_gc_deletes_nothing_while_a_live_lease_cannot_be_read(filled):
    lease = leases.hold(filled, [])
    lease.seek(0)
    lease.write(b"\xff")
    age(filled)
    with pytest.raises(Refused, match="a lease that cannot be read"):
        gc.collect(filled, 30, {}, False)
    lease.close()


HOLDER = """
import fcntl, sys, time
from pathlib import Path
from ingot.store import locks
with locks.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(30)
"""


def test_a_wait_for_a_lock_says_for_whom_and_ends(tmp_path, monkeypatch, capsys):
    place = tmp_path / ".content.busy"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(locks, "PATIENCE", 0.1)
        monkeypatch.setattr(locks, "LONGEST", 0.5)
        said = f"held for an hour by process {holder.pid} on"
        with pytest.raises(Refused, match=said), locks.locked(place, shared=True):
            pass
        assert f"held by process {holder.pid} on" in capsys.readouterr().err
    finally:
        holder.kill()
        holder.wait()


def test_what_is_made_in_a_store_has_its_mode_whatever_the_umask(filled):
    filled.root.chmod(0o2775)
    before = os.umask(0o077)
    try:
        outputs = [{**filled.take(Path("artifacts/f")), "title": "f"}]
        record = filled.record(Action("new", "cd" * 32, {}, outputs, {}, {}))
    finally:
        os.umask(before)
    assert record.path.stat().st_mode & 0o777 == 0o664
    assert record.path.parent.stat().st_mode & 0o7777 == 0o2775
    shared.share(record.path, filled.root)


def as_user(uid, umask, folder, function):
    """What `function` gives, run there as that user of group 61000, in a process of its own."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        with os.fdopen(reader) as said:
            text = said.read()
        assert os.waitpid(pid, 0)[1] == 0, text
        return json.loads(text)
    try:
        os.setgroups([])
        os.setgid(61000)
        os.setuid(uid)
        os.umask(umask)
        os.chdir(folder)
        os.write(writer, json.dumps(function()).encode())
    except BaseException as error:
        os.write(writer, repr(error).encode())
        os._exit(1)
    os._exit(0)


def build_and_keep(who):
    store = Store()
    assert store.prepare(), "not writable"
    made = Path("artifacts/m.gguf")
    made.parent.mkdir(exist_ok=True)
    made.unlink(missing_ok=True)
    made.write_text(f"made by {who}")
    leases.hold(store, [who * 64])
    output = {**store.take(made), "title": "m.gguf"}
    store.record(Action("rule", who * 64, {}, [output], {}, {}))
    store.index()
    kept = gc.collect(store, 30, {}, False)
    return {"records": len(list(store.records())), "fsck": fsck(store), "gc": kept}


@pytest.fixture
def open_folder():
    """A folder that other users may enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.root("two users")
@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_two_users_with_private_homes_share_a_store(umask, open_folder, monkeypatch):
    store = open_folder / "store"
    monkeypatch.setenv("INGOT_STORE", str(store))
    store.mkdir()
    os.chown(store, -1, 61000)
    store.chmod(0o2775)
    said = []
    for who, uid in (("a", 61001), ("b", 61002), ("a", 61001)):
        home = open_folder / who
        home.mkdir(exist_ok=True)
        os.chown(home, uid, 61000)
        home.chmod(0o700)
        said.append(as_user(uid, umask, home, lambda who=who: build_and_keep(who)))
    assert [one["records"] for one in said] == [1, 2, 2]
    assert said[1]["gc"]["unseen_folders"] == [str(open_folder / "a")]
    assert all(one["fsck"]["damaged_records"] == one["fsck"]["not_readable"] == [] for one in said)
    assert all(one["gc"]["records_dropped"] == [] for one in said)
