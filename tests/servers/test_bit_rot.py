"""Bit rot of each file of a chain of four steps: bytes that change on the disk while no time does."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from test_registry import needs_servers, server
from test_remote import Shared, proxy

from builds import job
from ingot.base import memo
from ingot.base.refused import Refused
from ingot.driver.cache.remote import settings
from ingot.driver.catalogue.job import Graph
from ingot.store import damage
from ingot.store.fsck import fsck
from ingot.store.records import Store

__all__ = ["proxy", "server"]  # fixtures
pytestmark = needs_servers
NAMES = ("a.txt", "b.one", "c.two", "d.three", "e.four")
LARGE = "0123456789abcdef" * 20_000


def graph(last):
    """a.txt -> b.one -> c.two -> d.three -> e.four, up to `last`, which is asked for."""
    names = NAMES[: NAMES.index(last) + 1]
    jobs = [job(*pair) for pair in itertools.pairwise(names)]
    needs = {one: {} for one in jobs}
    for maker, reader in itertools.pairwise(jobs):
        needs[reader] = {maker: {maker.writes[0]}}
    return Graph(jobs=jobs, needs=needs, targets=jobs[-1:], target_files={last})


def made(path, text):
    """What a tool makes: some of all that it read."""
    return f"{path}: {text[:90]}{LARGE}"


def right(last):
    text = Path("a.txt").read_text()
    for name in NAMES[1 : NAMES.index(last) + 1]:
        text = made(name, text)
    return text


def rot(path):
    """One bit of a blob, as the disk loses it: what is on record of its state goes on to hold."""
    blob = Path(path).resolve()
    known = {kind: memo.known(blob, kind) for kind in memo.KINDS}
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.seek(len("x.txt: "))
        byte = file.read(1)[0]
        file.seek(len("x.txt: "))
        file.write(bytes([byte ^ 1]))
    blob.chmod(0o444)
    for kind, name in known.items():
        if name:
            memo.remember(memo.stamp_of(blob), name, kind, durable=True)


def build(last, store):
    found = Shared(graph(last), store).build(made)
    return found.ran


def clear():
    for name in NAMES[1:]:
        Path(name).unlink(missing_ok=True)


@pytest.mark.parametrize("shared", [True, False], ids=["with a shared cache", "alone"])
@pytest.mark.parametrize("rotten", NAMES[1:])
def test_after_fsck_and_another_run_all_is_right(
    rotten, shared, proxy, folder, monkeypatch, capsys
):
    monkeypatch.setenv(settings.POLICY, settings.WRITE if shared else settings.OFF)
    build(rotten, folder / "first")
    rot(rotten)
    build(NAMES[-1], folder / "first")  # of what rots no step knows
    if rotten != NAMES[-1]:
        assert Path(NAMES[-1]).read_text() != right(NAMES[-1])
        assert not shared or "rests on a damaged file; not sent" in capsys.readouterr().err
    found = fsck(Store(folder / "first"))
    assert (shared and rotten != NAMES[-1]) or len(found["damaged_blobs"]) == 1
    clear()
    build(NAMES[-1], folder / "first")
    assert Path(NAMES[-1]).read_text() == right(NAMES[-1])
    clear()
    monkeypatch.setenv(settings.POLICY, settings.READ if shared else settings.OFF)
    build(NAMES[-1], folder / "second")
    assert Path(NAMES[-1]).read_text() == right(NAMES[-1]), "the shared cache gave it"
    assert fsck(Store(folder / "first"))["damaged_blobs"] == []


def test_a_record_that_rests_on_damage_is_not_taken_back_from_the_shared_cache(
    proxy, folder, monkeypatch, capsys
):
    """As an older Ingot sent it: without reading once more what it was made of."""
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    build("b.one", folder / "first")
    rot("b.one")
    monkeypatch.setattr("ingot.driver.cache.remote.remote.Remote._rests_on_sound", lambda *_: True)
    build("c.two", folder / "first")
    wrong = Path("c.two").read_text()
    assert wrong != right("c.two")
    found = fsck(Store(folder / "first"))
    assert found["damaged_blobs"] and found["built_again"] == ["b.one", "c.two"]
    clear()
    monkeypatch.setenv(settings.POLICY, settings.READ)
    build("c.two", folder / "first")
    assert Path("c.two").read_text() == right("c.two")
    assert "made of a damaged file; not taken, built again" in capsys.readouterr().err
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    clear()
    build("c.two", folder / "first")  # what is on record here replaces what is there
    clear()
    monkeypatch.setenv(settings.POLICY, settings.READ)
    build("c.two", folder / "second")
    assert Path("c.two").read_text() == right("c.two")


def test_what_rests_on_an_unread_file_is_left_alone(folder, store, monkeypatch):
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    build("e.four", store)
    dropped = damage.drop(Store(store), [f"sha256:{Path('c.two').resolve().name}"])
    assert [record.title for record in dropped] == ["d.three"]
    left = {record.title: record for record in Store(store).records()}
    assert set(left) == {"b.one", "c.two", "e.four"}
    distrusted = [name for name, record in left.items() if Store(store).distrusts(record)]
    assert distrusted == ["e.four"], "a recipe would find it, and names no bytes"


def test_fsck_goes_on_after_a_read_error_and_names_the_blob(folder, store, monkeypatch):
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    build("c.two", store)
    bad = Path("b.one").resolve()
    from ingot.base import digest

    whole = digest.read_from_disk

    def read(path):
        if path == bad:
            raise OSError(5, os.strerror(5))
        return whole(path)

    monkeypatch.setattr(digest, "read_from_disk", read)
    found = fsck(Store(store))
    name = f"sha256:{bad.name}"
    assert found["damaged_blobs"] == [name] and found["read_errors"] == {name: "Input/output error"}
    assert found["built_again"] == ["b.one", "c.two"] and not bad.exists()


def test_a_file_server_that_is_gone_ends_fsck_and_nothing_is_set_aside(folder, store, monkeypatch):
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    build("c.two", store)
    from ingot.base import digest

    def gone(path):
        raise OSError(107, os.strerror(107))

    monkeypatch.setattr(digest, "read_from_disk", gone)
    with pytest.raises(
        Refused, match="Transport endpoint is not connected, expected a file system"
    ):
        fsck(Store(store))
    assert not list(store.glob("quarantine/*")) and len(list(Store(store).records())) == 2


def test_what_was_made_of_a_blob_that_a_later_run_finds_rotten_goes_too(folder, store, monkeypatch):
    """The memo that vouched for it is gone, as after a move of the store: fsck finds nothing any more."""
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    build("b.one", store)
    rot("b.one")
    build("e.four", store)
    blob = Path("b.one").resolve()
    shutil.rmtree(store / "memo")
    monkeypatch.setattr(memo, "_here", {})
    assert not Store(store).has(f"sha256:{blob.name}")
    clear()
    assert fsck(Store(store))["damaged_blobs"] == []
    build("e.four", store)
    assert Path("e.four").read_text() == right("e.four")


def test_what_a_recipe_would_find_is_not_taken_either(proxy, folder, monkeypatch):
    """An older Ingot sent all that rests on it, by their recipes."""
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    build("b.one", folder / "first")
    rot("b.one")
    monkeypatch.setattr("ingot.driver.cache.remote.remote.Remote._rests_on_sound", lambda *_: True)
    build("e.four", folder / "first")
    fsck(Store(folder / "first"))
    clear()
    monkeypatch.setenv(settings.POLICY, settings.READ)
    build("e.four", folder / "first")
    assert Path("e.four").read_text() == right("e.four")


def test_a_job_that_read_what_was_found_damaged_meanwhile_is_not_recorded(
    folder, store, monkeypatch
):
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    build("b.one", store)
    rot("b.one")
    blob = Path("b.one").resolve()

    def mended_meanwhile(path, text):
        Store(store).quarantine(f"sha256:{blob.name}")
        blob.write_text(made("b.one", Path("a.txt").read_text()))
        memo.remember(memo.stamp_of(blob), f"sha256:{blob.name}")
        return made(path, text)

    run = Shared(graph("c.two"), store)
    (job,) = run.decide().run
    Path("c.two").write_text(mended_meanwhile("c.two", Path("b.one").read_text()))
    run.ingest.finished(job)
    assert [record.title for record in Store(store).records()] == ["b.one"]
    clear()
    build("c.two", store)
    assert Path("c.two").read_text() == right("c.two")
