"""`ingot publish`, `pull` and `show` of what was built, and of what was edited since."""

import shutil
from argparse import Namespace

import pytest

import registry as registries
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.commands import publish, pull

pytestmark = pytest.mark.skipif(
    not (registries.installed() and shutil.which("skopeo")),
    reason="needs docker-registry and skopeo, as .ci/run gets them",
)


@pytest.fixture
def server(tmp_path):
    with registries.Registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def on_record(shared, ingot, monkeypatch, tmp_path):
    """on_record(target) builds and verifies it; then ingot(...) works with the store that has it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def build(target):
        done = shared(tmp_path, "--", target, f"{target}.verified.json")
        assert done.returncode == 0, done.stderr
        return lambda *words, store=shared.store: ingot(
            *words, environment={"INGOT_STORE": str(store)}
        )

    return build


def test_commands_refuse_before_they_ask_anybody(tmp_path):
    def asked(**words):
        return Namespace(
            **{"configfile": None, "plain_http": False, "only": [], "key": [], **words}
        )

    with pytest.raises(Refused, match="expected a tag, such as"):
        publish.run(ROOT, asked(target=["artifacts/m"], to="oci://h/a", key=None))
    (tmp_path / "here").write_text("mine")
    with pytest.raises(Refused, match="here: exists, expected nothing there"):
        pull.run(ROOT, asked(reference="oci://127.0.0.1:1/a:1", target=tmp_path / "here"))


@pytest.mark.slow
def test_the_commands_publish_and_pull_what_was_built(server, on_record, tmp_path):
    target, place = "artifacts/demo.irpa", f"oci://{server.host}/demo/irpa:1.0"
    ingot = on_record(target)
    done = ingot("publish", target, "--to", place)
    assert done.returncode == 0 and f"{place}@sha256:" in done.stdout, done.stderr
    done = ingot("publish", target, "--to", place)
    assert "0.0 MB sent" in done.stdout, done.stderr
    done = ingot("pull", place, "back.irpa")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back.irpa").read_bytes() == (tmp_path / target).read_bytes()
    done = ingot("publish", target, "--to", place, store=tmp_path / "empty")
    assert done.returncode == 1 and "not on record, expected it built and verified" in done.stderr
    assert ingot("pull", place, "back.irpa").returncode == 1


@pytest.mark.slow
def test_a_folder_that_was_edited_is_neither_published_nor_shown_as_verified(
    server, on_record, tmp_path
):
    """What is on record would be sent in its place, and its record be shown."""
    target, place = "artifacts/demo.split", f"oci://{server.host}/demo/split:1.0"
    ingot = on_record(target)
    assert "verified" in ingot("show", target).stdout
    assert ingot("publish", target, "--to", place).returncode == 0
    (file, *_) = sorted((tmp_path / target).glob("*.gguf"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()  # a link into the store
    file.write_bytes(data)
    said = ingot("publish", target, "--to", place)
    assert said.returncode == 1 and "not the bytes on record; `snakemake" in said.stderr, (
        said.stderr
    )
    said = ingot("show", target)
    assert said.returncode == 1 and "are not those of SHA256SUMS" in said.stderr, said.stderr


@pytest.mark.slow
def test_a_set_of_which_a_rank_was_edited_is_not_published(server, on_record, tmp_path):
    ingot = on_record("artifacts/demo_tp2.irpa")
    rank = tmp_path / "artifacts/demo_tp2.rank1.irpa"
    data = bytearray(rank.read_bytes())
    data[-1] ^= 1
    rank.unlink()  # a link into the store
    rank.write_bytes(data)
    said = ingot("publish", "artifacts/demo_tp2.irpa", "--to", f"oci://{server.host}/demo/set:1.0")
    assert said.returncode == 1 and "rank1.irpa: not the bytes on record" in said.stderr, (
        said.stderr
    )
