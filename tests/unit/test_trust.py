"""The store believes no record, name or note for its own sake; gc takes nothing that is needed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ingot.files import digest, durable, memo, shared
from ingot.refused import Refused
from ingot.store import form, locks
from ingot.store.blobs import Blobs
from ingot.store.records import Action, Store
from ingot.storekeeping import aside, gc, leases
from ingot.storekeeping.fsck import fsck
from ingot.storekeeping.usage import usage

KEY = "ab" * 32


@pytest.fixture
def filled(store, tmp_path, monkeypatch):
    """A store with the record of a folder: a file, a link, and one more file below."""
    monkeypatch.chdir(tmp_path)
    Path("artifacts/f/deep").mkdir(parents=True)
    Path("artifacts/f/tool").write_bytes(b"tool")
    Path("artifacts/f/deep/m").write_bytes(b"weights")
    Path("artifacts/f/here").symlink_to("deep")
    found = Store()
    assert found.prepare()
    outputs = [{**found.take(Path("artifacts/f")), "title": "f"}]
    found.record(Action("rule", KEY, {"rule": "rule"}, outputs, {}, {}))
    return found


def forge(store, change, tree=True):
    """Rewrite the record as somebody else might, its digests right."""
    (pointer,) = store.root.glob("actions/rule/*")
    manifest = json.loads(pointer.read_bytes().partition(b"\n")[2])
    outputs = json.loads(manifest["annotations"]["ingot.outputs"])
    change(outputs[0], manifest)
    if tree and isinstance(outputs[0].get("entries"), list):
        bare = [{k: v for k, v in e.items() if k != "size"} for e in outputs[0]["entries"]]
        outputs[0]["digest"] = f"tree:{digest.of_json(bare)}"
    manifest["annotations"]["ingot.outputs"] = json.dumps(outputs)
    text = json.dumps(manifest).encode()
    pointer.write_bytes(f"sha256:{hashlib.sha256(text).hexdigest()}".encode() + b"\n" + text)
    return pointer


def entry(output, name):
    return next(one for one in output["entries"] if one["path"] == name)


def rename(to):
    def change(output, manifest):
        entry(output, "tool")["path"] = to
        for layer in manifest["layers"]:
            title = layer["annotations"]["org.opencontainers.image.title"]
            layer["annotations"]["org.opencontainers.image.title"] = title.replace(
                "f/tool", f"f/{to}"
            )

    return change


FORGED = {
    "absolute path": rename("/etc/cron.d/x"),
    "path upwards": rename("../.bashrc"),
    "path through its own link": rename("here/x"),
    "path below a file": rename("deep/m/x"),
    "path with a NUL": rename("a\0b"),
    "digest that is a path": lambda o, m: entry(o, "tool").update(digest="sha256:/home/me/thesis"),
    "layers of other files": lambda o, m: m["layers"].pop(),
    "no layers": lambda o, m: m.update(layers=None),
    "entries that are no list": lambda o, m: o.update(entries={"a": 1}),
    "size that is a text": lambda o, m: entry(o, "tool").update(size="4"),
    "title that is a path": lambda o, m: o.update(title="../f"),
    "kind of a later version": lambda o, m: o.update(kind="volume"),
    "half of a character": lambda o, m: m.update(note="\ud800"),
    "no config": lambda o, m: m.pop("config"),
}


@pytest.mark.parametrize("fault", FORGED)
def test_a_forged_record_is_no_record_and_fsck_removes_it(fault, filled):
    assert len(list(filled.records())) == 1
    pointer = forge(filled, FORGED[fault])
    assert filled.lookup("rule", KEY) is None and not list(filled.records())
    usage(filled)
    gc.collect(filled, 30, {}, True)
    filled.reindex()
    assert fsck(filled)["damaged_records"] == [f"actions/rule/{KEY}"] and not pointer.exists()


def test_a_folders_digest_is_that_of_its_entries(filled):
    forge(filled, lambda o, m: entry(o, "tool").update(executable=True), tree=False)
    assert filled.lookup("rule", KEY) is None
    with pytest.raises(Refused, match="not those of its digest"):
        form._folder({"digest": "tree:" + "0" * 64, "entries": []})


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "sha256:/etc/passwd", "sha256:../x", "ab" * 32, ""]
)
def test_no_name_leads_out_of_the_store(name, filled, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with pytest.raises(Refused, match="not a digest, expected sha256: and 64 hex digits"):
        filled.has(name)
    with pytest.raises(Refused, match="not a digest"):
        Blobs().place(f"sha256:{victim}", tmp_path / "out")
    assert victim.read_text() == "mine"


def test_fifos_in_the_store_hang_nobody(filled):
    for place in (
        f"actions/rule/{'cd' * 32}",
        "leases/ab",
        "folders/ab",
        f"blobs/sha256/{'0' * 64}",
    ):
        (filled.root / place).parent.mkdir(exist_ok=True)
        os.mkfifo(filled.root / place)
    assert len(list(filled.records())) == 1 and not filled.has("sha256:" + "0" * 64)
    list(leases.alive(filled)), list(leases.notes(filled))
    gc.collect(filled, 30, {}, True)
    usage(filled)
    assert f"actions/rule/{'cd' * 32}" in fsck(filled)["damaged_records"]


def test_an_index_of_another_form_comes_back(filled):
    (filled.root / "index.json").write_text('{"manifests": [{"digest": 5}]}')
    filled.index()
    (one,) = json.loads((filled.root / "index.json").read_bytes())["manifests"]
    assert one["digest"].startswith("sha256:")


def test_a_record_costs_one_line_of_the_index_whatever_the_store_holds(filled):
    before = (filled.root / "index.json").stat().st_ino
    outputs = [{**filled.take(Path("artifacts/f")), "title": "f"}]
    filled.record(Action("rule", "cd" * 32, {}, outputs, {}, {}))
    assert (filled.root / "index.json").stat().st_ino == before
    assert Store().prepare()  # what a killed run left is brought in by the next
    assert len(json.loads((filled.root / "index.json").read_bytes())["manifests"]) == 2


# Memos


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


def test_two_file_systems_do_not_share_a_memo(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text("{}")
    first = memo.stamp_of(file)
    monkeypatch.setattr(memo, "_file_systems", {file.stat().st_dev: "another"})
    assert memo.stamp_of(file) != first
    assert memo.stamp_of(file).partition("-")[2] == first.partition("-")[2]


def test_nothing_on_a_memory_file_system_is_remembered_for_others(store, tmp_path, monkeypatch):
    shm = Path("/dev/shm")
    if not shm.is_dir() or memo._mount(shm.stat().st_dev)[0] != "tmpfs":
        pytest.skip("needs a tmpfs at /dev/shm")
    file = shm / f"ingot-test-{os.getpid()}"
    try:
        file.write_text("a")
        digest.of(file)
        assert memo.known(file)  # this process read it
        assert not list(store.glob("memo/*/*"))
    finally:
        file.unlink()


def test_a_memo_that_power_loss_left_full_of_zeros_is_none(filled, monkeypatch):
    big = Path("big")
    big.write_bytes(b"x" * 2_000_000)
    digest.of(big)
    monkeypatch.setattr(memo, "_here", {})
    memo._memo(filled.root, memo.stamp_of(big)).write_bytes(bytes(71))
    assert memo.known(big) is None


# gc, working folders, locks


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


# A user's own


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


def test_durable_reads_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        durable.regular_bytes(tmp_path / "fifo")


# Two users of one store


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
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
