"""Where a pull puts what it takes, and what is said of a reference that is a release, or none."""

from argparse import Namespace

import pytest
from test_registry import FILES, artifact, needs_servers, push, quick, server, to
from test_signatures import key

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.commands import diff, pull
from ingot.driver.release import released
from ingot.driver.release.document import Document
from ingot.registry import published, reference
from ingot.registry.connection import Connection

__all__ = ["artifact", "key", "quick", "server"]  # fixtures
pytestmark = needs_servers


def pulled(reference, target=None, only=(), keys=()):
    pull.run(
        ROOT,
        Namespace(reference=str(reference), target=target, only=[*only], key=[*keys], plain_http=False),
    )  # fmt: skip


@pytest.fixture
def release(server, artifact, key):
    """A release of one cell, m.irpa, as `ingot release m@1.0` publishes it; the reference of it."""
    one, place = artifact(single=True), to(server.host, "rel", "1.0-m.irpa")
    origin = published.Origin({"buildDefinition": {"buildType": "test"}}, b"{}", key[0])
    entry, _ = released.cell(
        Connection(place, "pull,push"), one, origin, "1.0-m.irpa", image=False, sources=[]
    )
    cell = {"target": "artifacts/m.irpa", "recipe": "r", "digest": one.output["digest"], "bytes": 1}
    said = Document("m", "1.0", {"m.irpa": {**cell, "checks": {}}})
    place = to(server.host, "rel")
    released.publish(Connection(place, "pull,push"), said, {"m.irpa": entry}, key[0])
    return place


def test_of_a_release_a_pull_names_the_references_of_its_cells(release, key, tmp_path):
    for keys in ((), (key[1],)):
        with pytest.raises(Refused) as error:
            pulled(release, keys=keys)
        said = str(error.value)
        assert said.startswith(f"{release}: a release of 1 cell, expected one artifact; pull ")
        assert said.endswith(f" {release}-m.irpa") and "not taken" not in said
    pulled(f"{release}-m.irpa", tmp_path / "back", keys=[key[1]])
    assert (tmp_path / "back").read_bytes() == FILES["model.irpa"]


def test_of_a_release_only_a_cell_names_the_reference_of_that_one(release):
    cells = {f"m{number}.irpa": {} for number in range(40)}
    assert released.pulled_by(release, "m@1.0", list(cells), ["m7.irpa"]).endswith(
        f"; pull {release}-m7.irpa"
    )
    said = released.pulled_by(release.at("sha256:" + "1" * 64), "m@1.0", list(cells), [])
    assert f"; pull one of {release}-m0.irpa, :1.0-m1.irpa, " in said and len(said) < 2000


def test_into_a_folder_an_artifact_goes_under_its_own_title(server, artifact, tmp_path):
    push(server.host, artifact(single=True), name="file")
    push(server.host, artifact(), name="folder")
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    for target in ("here", tmp_path / "link/", "new/"):
        pulled(to(server.host, "file"), target, only=["m.irpa"])
        assert (tmp_path / target / "m.irpa").read_bytes() == FILES["model.irpa"]
        with pytest.raises(Refused, match=r"m\.irpa: exists, expected nothing there"):
            pulled(to(server.host, "file"), target)
        (tmp_path / target / "m.irpa").unlink()
    pulled(to(server.host, "folder"), "here")
    assert (tmp_path / "here/m.shortfin/model.irpa").read_bytes() == FILES["model.irpa"]
    pulled(to(server.host, "folder"), "other")
    assert (tmp_path / "other/model.irpa").exists(), "where nothing is, it has that name"


def test_a_file_is_no_folder_to_pull_into(tmp_path, monkeypatch):
    """Before anybody is asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    for target, said in (("mine/", "mine: a file, expected a folder"), ("mine", "mine: exists")):
        with pytest.raises(Refused, match=said):
            pulled("oci://127.0.0.1:1/a:1", target)
    (tmp_path / "nowhere").symlink_to("gone")
    with pytest.raises(Refused, match="nowhere: exists"):
        pulled("oci://127.0.0.1:1/a:1", "nowhere")


def compared(*names):
    old, new = (*names, ".")[:2]
    return diff.run(
        ROOT,
        Namespace(old=str(old), new=str(new), key=[], plain_http=False, json=False, configfile=None),
    )  # fmt: skip


def test_one_artifact_is_not_compared_as_a_release(release):
    assert compared(release, release) == 0
    with pytest.raises(Refused) as error:
        compared(f"{release}-m.irpa")
    assert str(error.value).startswith(f"{release}-m.irpa: one artifact, expected a release")


def test_files_and_names_without_a_scheme_are_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "artifacts/a.gguf", "./a.gguf"):
        with pytest.raises(Refused, match=f"^{name}: .*; `ingot report A --against B` compares"):
            compared(name, "b.gguf")
    (tmp_path / "ghcr.io/me").mkdir(parents=True)
    (tmp_path / "ghcr.io/me/m").write_text("m")
    with pytest.raises(Refused, match="ingot report"):
        compared("ghcr.io/me/m")
    for name in ("ghcr.io/me/m:1", "127.0.0.1:1/m:1", "localhost/m"):
        with pytest.raises(Refused, match=f"; put oci:// before it: oci://{name}$"):
            reference.parse(name)
        with pytest.raises(Refused, match="; put oci:// before it"):
            compared(name)
    for name in ("artifacts/m.gguf", "./m", "https://ghcr.io/me/m", "m", "ghcr.io/Me"):
        with pytest.raises(Refused, match="no reference, expected oci://host/repository:tag"):
            reference.parse(name)
