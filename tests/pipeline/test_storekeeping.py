"""What `ingot store` and `ingot explain` promise."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from conftest import IRPA, ROOT
from ingot.base import digest, memo
from ingot.base.refused import Refused
from ingot.driver.cache.differences import differences
from ingot.driver.release import on_record
from ingot.model.checkpoint import identity
from ingot.store.fsck import fsck
from ingot.store.records import Store

OLD = time.time() - 100 * 86400


def age(store):
    for pointer in store.glob("actions/*/*"):
        os.utime(pointer, (OLD, OLD))


def blobs(store):
    return {path.name for path in store.glob("blobs/sha256/*")}


def asked(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_du_counts_each_blob_once_by_model_and_kind(clone, build, store, ingot):
    build(clone("a"))
    found = asked(ingot("store", "du", "--json"))
    rows = {(row["model"], row["kind"]): row for row in found["rows"]}
    assert set(rows) == {("demo", "gguf"), ("demo", "irpa")}
    assert (
        sum(row["bytes"] for row in rows.values())
        < found["bytes"]
        == sum(path.stat().st_size for path in store.glob("blobs/sha256/*"))
    )
    assert "demo" in ingot("store", "du").stdout


def test_fsck_sets_a_damaged_blob_aside_and_says_what_will_be_built_again(
    clone, build, store, ingot
):
    folder = clone("a")
    build(folder)
    blob = (folder / IRPA).resolve()
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"x")
    done = ingot("store", "fsck")
    assert done.returncode == 1
    assert "demo.irpa: will be built again" in done.stdout
    assert not blob.exists() and len(list(store.glob("quarantine/*"))) == 1
    assert ingot("store", "fsck").returncode == 0
    build(folder)


def test_fsck_removes_what_killed_writers_left(clone, build, store, ingot):
    build(clone("a"))
    left = store / "blobs/sha256/.abc.999999.140000000000.partial"
    left.write_bytes(b"half")
    found = asked(ingot("store", "fsck", "--json"))
    assert found["leftovers_removed"] == 0  # another host may still be writing it
    os.utime(left, (OLD, OLD))
    assert asked(ingot("store", "fsck", "--json"))["leftovers_removed"] == 1


def test_gc_says_what_it_would_free_and_frees_that(clone, build, store, ingot):
    folder = clone("a")
    build(folder)
    assert asked(ingot("store", "gc", "--json"))["records_dropped"] == []  # too young
    shutil.rmtree(folder)
    age(store)
    said = asked(ingot("store", "gc", "--dry-run", "--json"))
    assert said["records_dropped"] == [] and said["unseen_folders"] == [str(folder)]
    wrong = ingot("store", "gc", "--forget", f"{folder}x")
    assert wrong.returncode == 1 and "not among the working folders" in wrong.stderr
    before = sum(path.stat().st_size for path in store.glob("blobs/sha256/*"))
    said = asked(ingot("store", "gc", "--forget", folder, "--dry-run", "--json"))
    assert set(said["records_dropped"]) == {"demo.gguf", "demo.irpa"}
    assert sum(path.stat().st_size for path in store.glob("blobs/sha256/*")) == before
    done = asked(ingot("store", "gc", "--forget", folder, "--json"))
    after = sum(path.stat().st_size for path in store.glob("blobs/sha256/*"))
    assert done["bytes_freed"] == said["bytes_freed"] == before - after > 20_000_000
    assert ingot("store", "fsck").returncode == 0


def test_gc_keeps_what_stands_in_a_working_folder(clone, build, store, ingot):
    folder = clone("a")
    build(folder)
    (folder / "artifacts/demo.gguf").unlink()
    age(store)
    done = asked(ingot("store", "gc", "--json"))
    assert done["records_dropped"] == [] and done["bytes_freed"] > 10_000_000  # demo.gguf's
    assert (folder / IRPA).stat().st_size > 1_000_000
    (folder / IRPA).unlink()
    assert asked(ingot("store", "gc", "--json"))["records_dropped"] == ["demo.irpa", "demo.gguf"]


def test_gc_keeps_what_named_targets_need(clone, build, store, ingot):
    folder = clone("a")
    build(folder)
    build(folder, "--", "artifacts/demo.bf16.gguf")
    shutil.rmtree(folder / "artifacts")
    age(store)
    done = subprocess.run(  # of this clone's code, not of the repository's
        [sys.executable, "-m", "ingot.driver.commands.cli", "store", "gc", IRPA, "--json"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "scripts")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert asked(done)["records_dropped"] == ["demo.bf16.gguf"]
    assert "Nothing to be done" in build(folder)  # the record above it was enough
    assert not (folder / "artifacts/demo.gguf").exists()


def test_what_was_built_is_asked_of_the_store_alone(built, store, monkeypatch):
    """No Snakemake is started for it, whose import takes 1.5 CPU seconds."""
    monkeypatch.chdir(built("a"))
    for name in ("dry_run", "build"):
        monkeypatch.setattr(on_record, name, lambda *_, **__: pytest.fail("Snakemake was started"))
    found = on_record.OnRecord(ROOT, Store(), [IRPA])
    assert [one.rule for one in found.steps(IRPA)] == ["safetensors_to_gguf", "gguf_to_irpa"]
    assert found.makers[IRPA]["inputs"] == ["artifacts/demo.gguf"]
    with pytest.raises(Refused, match=": not here, expected it built and verified"):
        on_record.OnRecord(ROOT, Store(), ["artifacts/demo.q4_k_m.gguf", "artifacts/demo.gguf"])
    other = {
        **found.makers["artifacts/demo.gguf"],
        "rule": "gguf_to_irpa",
        "key": found.makers[IRPA]["key"],
    }
    with pytest.raises(Refused, match="was built in two ways for what stands here"):
        found._found([*found.makers.values(), other])
    assert found.origin(IRPA).predicate["buildDefinition"]["externalParameters"]["target"] == IRPA


def test_gc_takes_nothing_from_a_running_build(clone, build, store, ingot):
    folder = clone("a")
    build(folder)
    keys = [pointer.name for pointer in store.glob("actions/*/*")]
    shutil.rmtree(folder / "artifacts")
    age(store)
    lease = store / "leases/abc"
    with lease.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        json.dump({"folder": "/", "keys": keys}, held)
        held.flush()
        assert asked(ingot("store", "gc", "--json"))["records_dropped"] == []
    assert len(asked(ingot("store", "gc", "--json"))["records_dropped"]) == 2
    assert not lease.exists()


KILLED_AT = textwrap.dedent(
    """
    import os, pathlib, signal, sys
    from pathlib import Path
    left = int(sys.argv[1])
    def counted(function):
        def call(*arguments, **options):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call
    os.link = counted(os.link)
    for name in ("rename", "replace", "unlink", "chmod", "symlink_to", "write_bytes", "mkdir"):
        setattr(Path, name, counted(getattr(Path, name)))
    """
)
INGEST = KILLED_AT + textwrap.dedent(
    """
    from ingot.store.records import Action, Store
    store = Store()
    store.prepare()
    outputs = [{**store.take(Path(name)), "title": name} for name in ("out", "folder")]
    store.record(Action("rule", "ab" * 32, {"rule": "rule"}, outputs, {}, {}))
    """
)
COLLECT = KILLED_AT + "from ingot.store.gc import collect\nfrom ingot.store.records import Store\n"
COLLECT += "collect(Store(), 0, {}, False)\n"


def killed_at(script, number, cwd):
    done = subprocess.run(
        [sys.executable, "-c", script, str(number)], cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")}, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def outputs(folder):
    (folder / "folder").mkdir(parents=True)
    (folder / "out").write_bytes(b"finished")
    (folder / "folder/large").write_bytes(bytes(2 << 20))
    (folder / "folder/tool").write_bytes(b"tool")
    (folder / "folder/tool").chmod(0o755)


def test_sigkill_at_every_point_of_the_ingest_keeps_the_output_and_the_store_whole(store, tmp_path):
    number = 0
    while True:
        folder = tmp_path / f"try{number}"
        outputs(folder)
        shutil.rmtree(store, ignore_errors=True)
        killed = killed_at(INGEST, number, folder)
        assert (folder / "out").read_bytes() == b"finished"
        assert (folder / "folder/tool").stat().st_mode & 0o100
        assert not killed_at(INGEST, 10_000, folder)
        found = fsck(Store())
        assert not found["damaged_blobs"] and not found["damaged_records"]
        (record,) = Store().records()
        assert all(Store().whole(output) for output in record.outputs)
        index = json.loads((store / "index.json").read_bytes())["manifests"]
        assert [entry["digest"] for entry in index] == [record.digest]
        if not killed:
            break
        number += 1
    assert number > 15


def test_an_interrupted_gc_harms_nothing(store, tmp_path):
    number = 0
    while True:
        folder = tmp_path / f"try{number}"
        outputs(folder)
        shutil.rmtree(store, ignore_errors=True)
        assert not killed_at(INGEST, 10_000, folder)
        age(store)
        if not killed_at(COLLECT, number, folder):
            break
        found = fsck(Store())
        assert not found["damaged_blobs"] and not found["damaged_records"]
        for record in Store().records():
            assert all(Store().whole(output) for output in record.outputs)
        assert not killed_at(COLLECT, 10_000, folder)
        assert not list(store.glob("actions/*/*"))
        number += 1
    assert number > 5


def test_a_place_without_links_gets_copies(store, tmp_path, monkeypatch):
    """As on FAT, or on a share that refuses links."""

    def refuse(*_, **__):
        raise PermissionError("no links here")

    outputs(tmp_path / "a")
    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    monkeypatch.setattr(os, "link", refuse)
    here = Store()
    assert here.prepare()
    names = [here.take(tmp_path / "a" / name) for name in ("out", "folder")]
    for name, output in zip(("out", "folder"), names, strict=True):
        here.restore(output, tmp_path / "b" / name)
    assert (tmp_path / "b/out").read_bytes() == b"finished"
    assert memo.known(tmp_path / "b/out") == names[0]["digest"]
    assert digest.of(tmp_path / "b/folder") == digest.of(tmp_path / "a/folder")
    (tmp_path / "b/out").chmod(0o644)
    (tmp_path / "b/out").write_bytes(b"edited")
    assert here.whole(names[0])


def test_a_shard_has_two_identities_and_both_stand(store, tmp_path):
    """A local checkpoint may lead into the store: what was fetched is used as path: as well."""
    here = Store()
    here.prepare()
    shard = shutil.copy(ROOT / "models/demo/model-00001-of-00002.safetensors", tmp_path)
    taken = here.take(Path(shard))
    assert identity.of(Path(shard)).startswith("tensors:")
    assert here.has(taken["digest"]) and not list(store.glob("quarantine/*"))
    assert memo.known(shard) == taken["digest"]


def test_a_folder_comes_back_whole(store, tmp_path):
    outputs(tmp_path / "a")
    folder = tmp_path / "a/folder"
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("tool")
    here = Store()
    here.prepare()
    taken = here.take(folder)
    here.restore(taken, tmp_path / "back")
    assert digest.tree(tmp_path / "back") == digest.tree(folder)
    assert (tmp_path / "back/link").readlink().name == "tool"
    assert (tmp_path / "back/tool").stat().st_mode & 0o777 == 0o755
    (tmp_path / "back/tool").write_bytes(b"mine")  # small files may be edited: they are copies
    assert here.whole(taken)
    shutil.rmtree(tmp_path / "back")
    assert here.whole(taken)


def test_a_stranger_restores_a_file_with_jq_and_sha256sum(clone, build, store):
    """The commands of docs/store.md."""
    if not shutil.which("jq"):
        pytest.skip("needs jq")
    build(clone("a"))
    page = (ROOT / "docs/store.md").read_text()
    script = page.split("```sh\n")[1].split("```")[0]
    done = subprocess.run(
        ["bash", "-euc", script], cwd=store, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (store / "demo.irpa").stat().st_size > 1_000_000


def test_the_store_is_an_oci_layout(clone, build, store):
    build(clone("a"))
    assert json.loads((store / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((store / "index.json").read_bytes())
    assert index["schemaVersion"] == 2 and len(index["manifests"]) == 2
    for entry in index["manifests"]:
        algorithm, _, name = entry["digest"].partition(":")
        text = (store / "blobs" / algorithm / name).read_bytes()
        assert len(text) == entry["size"] and hashlib.sha256(text).hexdigest() == name
        manifest = json.loads(text)
        assert manifest["mediaType"] == entry["mediaType"]
        for part in (manifest["config"], *manifest["layers"]):
            blob = store / "blobs/sha256" / part["digest"].removeprefix("sha256:")
            assert blob.stat().st_size == part["size"]


@pytest.mark.skipif(not shutil.which("skopeo"), reason="needs skopeo (Debian: apt install skopeo)")
def test_skopeo_inspects_and_copies_records(clone, build, store, tmp_path):
    build(clone("a"))
    (tmp_path / "policy").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    for entry in json.loads((store / "index.json").read_bytes())["manifests"]:
        name = entry["annotations"]["org.opencontainers.image.ref.name"]
        said = subprocess.run(
            ["skopeo", "inspect", f"oci:{store}:{name}"], capture_output=True, check=True
        )
        assert json.loads(said.stdout)["Digest"] == entry["digest"]
        subprocess.run(
            ["skopeo", "--policy", tmp_path / "policy", "copy", f"oci:{store}:{name}",
             f"oci:{tmp_path}/second:{name}"], check=True,
        )  # fmt: skip
        second = json.loads((tmp_path / "second/index.json").read_bytes())["manifests"]
        assert entry["digest"] in [other["digest"] for other in second]


def explained(folder, *targets):
    done = subprocess.run(
        [sys.executable, "-m", "ingot.driver.commands.cli", "explain", *targets], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "scripts")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_explain_names_the_package_the_tensor_the_file_and_the_setting(clone, build, store):
    folder = clone("a")
    assert re.search(r"demo.gguf: would be built\n +new$", explained(folder, IRPA), re.M)
    build(folder)
    assert explained(folder, IRPA) == f"{IRPA}: up to date\n"
    (folder / IRPA).unlink()
    assert "would be restored" in explained(folder, IRPA)
    lock = folder / "envs/convert/requirements.lock"
    lock.write_text(lock.read_text().replace("gguf==0.19.0", "gguf==0.18.0"))
    assert "envs/convert lock: gguf 0.19.0 → 0.18.0" in explained(folder, IRPA)
    shard = folder / "models/demo/model-00001-of-00002.safetensors"
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert "1 of 22 tensors differ, first model." in explained(folder, IRPA)
    with (folder / "scripts/ingot/formats/gguf/file.py").open("a") as file:
        file.write("#\n")
    assert "scripts/ingot/formats/gguf/file.py changed" in explained(folder, IRPA)
    assert "demo.q8_0.gguf: would be built\n    new\n" in explained(
        folder, "artifacts/demo.q8_0.gguf"
    )


def test_explain_refuses_a_wrong_target_in_one_line(clone, store, ingot):
    done = ingot("explain", "artifacts/llama999b.gguf", cwd=clone("a"))
    assert done.returncode != 0 and "unknown model llama999b" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_without_a_store_say_so_in_one_line(ingot):
    done = ingot("store", "du")
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1
    assert "no store yet" in done.stderr


def test_one_file_and_a_set_of_ranks_can_be_compared():
    """The bundle of one rank beside the record of one for two: its parameters are no list."""
    same = {"version": 1, "rule": "r", "command": "c", "outputs": [], "params": {}, "wildcards": {}}
    one, two = (
        {"fields": {**same, "code": {}, "lock": {}, "inputs": {"parameters": content}}}
        for content in ("sha256:a", [["m.irpa", "sha256:b"], ["m.rank0.irpa", "sha256:c"]])
    )
    assert list(differences(two, one)) == ["input parameters: was 2 files, is one file"]
    assert list(differences(one, two)) == ["input parameters: was one file, is 2 files"]
