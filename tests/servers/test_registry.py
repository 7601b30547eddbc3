"""Publishing to a real registry and back: the same bytes, or one line; and nothing that leaks."""

import base64
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import registry as registries
from conftest import ROOT, needs_mounts
from ingot.base.refused import Refused
from ingot.driver.cache.remote import settings
from ingot.registry import connection as connections
from ingot.registry import (
    credentials,
    listed,
    modelpack,
    published,
    reference,
    restore,
    room,
    transfer,
    trusted,
)
from ingot.registry.connection import Connection
from ingot.registry.tar_layer import TarLayer
from ingot.store.records import TITLE, Action, Store

needs_servers = pytest.mark.skipif(
    not (registries.installed() and shutil.which("skopeo")),
    reason="needs docker-registry and skopeo, as .ci/run gets them",
)
pytestmark = needs_servers
KEY = "ab" * 32
FILES = {"model.irpa": os.urandom(3 << 20), "config.json": b"{}\n", "deep/tokenizer.json": b"[1]\n"}
SCRIPT = b"#!/bin/sh\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with registries.Registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(connections, "WAIT", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


@pytest.fixture
def artifact(tmp_path, monkeypatch, store):
    """artifact(single=False) is a bundle on record, or a file, and its passing verification."""

    def make(single=False, sha256=None, **record):
        monkeypatch.chdir(tmp_path)
        title = "m.irpa" if single else "m.shortfin"
        place = tmp_path / title
        subprocess.run(
            ["rm", "-rf", place], check=True
        )  # of an earlier call: the store's, read-only
        if single:
            place.write_bytes(FILES["model.irpa"])
        else:
            for name, data in FILES.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(data)
            (place / "serve").write_bytes(SCRIPT)
            (place / "serve").chmod(0o755)
            from ingot.base import sealed

            sealed.seal(place)
        found = Store()
        assert found.prepare()
        output = {**found.take(place), "title": title}
        kept = found.record(Action("bundle", KEY, {"rule": "bundle"}, [output], {}, {}))
        verified = tmp_path / f"{title}.verified.json"
        one = published.Artifact(found, kept, output, verified, [output])
        said = {
            "sha256": sha256 or one.digest,
            "result": "passed",
            "reference": "r",
            "checks": {},
        } | record
        verified.write_text(json.dumps(said))
        return one

    return make


def to(host, name="a/b", tag="1.0"):
    return reference.parse(f"oci://{host}/{name}:{tag}")


def push(host, one, key=None, **words):
    connection = Connection(to(host, **words), "pull,push")
    origin = published.Origin({"buildDefinition": {"buildType": "test"}}, b"{}", key)
    return published.publish(connection, one, "1.0", None, origin, image=True)


def get(connection, target, only):
    return restore.pull(listed.read(connection), target, only)


def same(folder):
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip
    found.pop("SHA256SUMS")
    return found == {**FILES, "serve": SCRIPT}


def test_what_was_published_comes_back_by_us_and_by_skopeo(server, artifact, tmp_path):
    digest, sent = push(server.host, artifact())
    assert sent > 2 * len(FILES["model.irpa"])  # as a raw layer, and as a tar
    assert push(server.host, artifact()) == (digest, 0)
    get(Connection(to(server.host)), tmp_path / "back", [])
    assert same(tmp_path / "back") and os.access(tmp_path / "back/serve", os.X_OK)
    layout = f"oci:{tmp_path}/layout:1.0"
    policy = tmp_path / "policy.json"
    policy.write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
    subprocess.run(
        ["skopeo", "--policy", policy, "copy", "--all", "--preserve-digests", "--quiet",
         "--src-tls-verify=false", f"docker://{server.host}/a/b:1.0", layout],
        check=True, capture_output=True,
    )  # fmt: skip
    index = json.loads((tmp_path / "layout/index.json").read_text())
    assert index["manifests"][0]["digest"] == digest
    blob = tmp_path / "layout/blobs/sha256" / hashlib.sha256(FILES["model.irpa"]).hexdigest()
    assert blob.read_bytes() == FILES["model.irpa"]  # a layer's digest is its file's


@pytest.mark.parametrize("single", [True, False])
def test_what_ci_copied_from_the_store_is_pulled(single, server, artifact, tmp_path):
    record = artifact(single).record
    Store().index()
    (tmp_path / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
    subprocess.run(
        ["skopeo", "--policy", "policy.json", "copy", "--quiet", "--preserve-digests",
         "--dest-tls-verify=false", f"oci:{Store().root}:{record.tag}",
         f"docker://{server.host}/ci:{record.tag}"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    found = listed.read(Connection(to(server.host, "ci", record.tag)))
    assert found.title() == record.title and found.digest == record.digest
    files = restore.pull(found, tmp_path / "back", [])
    if single:
        assert (tmp_path / "back").read_bytes() == FILES["model.irpa"] and len(files) == 1
    else:
        assert same(tmp_path / "back") and os.access(tmp_path / "back/serve", os.X_OK)
    with pytest.raises(Refused, match="not signed"):
        trusted.check(found, ["a key"])


def test_a_record_that_is_not_of_its_layers_is_not_pulled(server, artifact, tmp_path):
    push(server.host, one := artifact())
    notes = one.record.manifest["annotations"]
    place = Connection(to(server.host), "pull,push")
    for change in ({"layers": []}, {"annotations": {**notes, "ingot.outputs": "[]"}}):
        digest, _ = transfer.put_manifest(place, {**one.record.manifest, **change})
        found = listed.read(Connection(to(server.host).at(digest)))
        for does in (found.title, lambda found=found: restore.pull(found, tmp_path / "back", [])):
            with pytest.raises(Refused, match=r"no record of a store.*publish it again"):
                does()
    assert not (tmp_path / "back").exists()


def test_the_config_has_what_modelpack_knows_and_nothing_else(server, artifact):
    push(server.host, artifact())
    found = listed.read(Connection(to(server.host)))
    model = found.manifest(found.one(modelpack.MODEL))
    said = json.loads(transfer.get(found.connection, model["config"]))
    assert {name: set(value) for name, value in said.items()} == {
        "descriptor": {"name", "family"}, "config": {"format"}, "modelfs": {"type", "diffIds"},
    }  # fmt: skip
    assert said["modelfs"]["diffIds"] == [one["digest"] for one in model["layers"]]
    kinds = {modelpack.LAYER.format(kind=one) for one in ("weight", "weight.config", "code", "doc")}
    assert model["artifactType"] == modelpack.ARTIFACT
    assert {one["mediaType"] for one in model["layers"]} <= kinds


def test_the_image_unpacks_to_the_artifact_by_tar(server, artifact, tmp_path):
    digest, _ = push(server.host, artifact())
    found = Connection(to(server.host))
    index, _ = transfer.get_manifest(found, digest)
    images = {
        one["platform"]["architecture"]: one for one in index["manifests"] if "platform" in one
    }
    assert set(images) == {"amd64", "arm64"}, "podman pull --arch arm64 finds it"
    manifest, other = (
        transfer.get_manifest(found, images[name]["digest"])[0] for name in ("amd64", "arm64")
    )
    assert manifest["layers"] == other["layers"] and manifest["config"] != other["config"]
    (tmp_path / "root").mkdir()
    for number, layer in enumerate(manifest["layers"]):
        transfer.pull(found, layer["digest"], layer["size"], tmp_path / f"{number}.tar")
        command = ["tar", "-xpf", tmp_path / f"{number}.tar", "-C", tmp_path / "root"]
        subprocess.run(command, check=True)
    assert same(tmp_path / "root/models") and os.access(tmp_path / "root/models/serve", os.X_OK)


def test_every_byte_is_sent_once_unless_an_image_is_asked_for(server, artifact):
    one = artifact()
    connection = Connection(to(server.host, "once/a"), "pull,push")
    origin = published.Origin({"buildDefinition": {"buildType": "test"}}, b"{}")
    _, sent = published.publish(connection, one, "1.0", None, origin)
    assert one.output["size"] <= sent < 1.1 * one.output["size"]
    _, more = published.publish(connection, one, "1.0", None, origin, image=True)
    assert one.output["size"] <= more < 1.1 * one.output["size"]


def test_what_another_repository_has_is_mounted(server, artifact):
    one, origin = artifact(), published.Origin({"buildDefinition": {"buildType": "test"}}, b"{}")
    published.publish(Connection(to(server.host, "from/a"), "pull,push"), one, "1.0", None, origin)
    store = Store()
    settings.published_to(server.host, "no/such", store)
    settings.published_to(server.host, "from/a", store)
    sources = settings.repositories(server.host, store)
    assert sources == ["from/a", "no/such"] and settings.repositories("elsewhere", store) == []
    connection = Connection(to(server.host, "mounted/a"), "pull,push")
    _, sent = published.publish(connection, one, "1.0", None, origin, sources=sources)
    assert sent < 10_000
    get(Connection(to(server.host, "mounted/a")), store.root.parent / "back", [])
    assert same(store.root.parent / "back")


@pytest.mark.parametrize("title", ["a\x1b[2Jb", "two\nlines", "-rf", ".hidden", "a/b", ""])
def test_a_name_that_is_none_is_not_taken_for_a_files(title, server, artifact):
    digest, _ = push(server.host, artifact(single=True))
    connection = Connection(to(server.host), "pull,push")
    found = listed.read(connection, digest)
    manifest = found.manifest(found.one(modelpack.MODEL))
    manifest["annotations"][TITLE] = title
    transfer.put_manifest(connection, manifest, "named")
    with pytest.raises(Refused, match="is no plain name; say where to put it") as reason:
        listed.read(Connection(to(server.host, tag="named"))).title()
    assert str(reason.value).isprintable()


@needs_mounts
def test_a_pull_without_room_ends_in_a_line_and_leaves_the_disk_as_it_was(
    server, artifact, tmp_path
):
    """A disk of two megabytes: full before, or while it comes."""
    push(server.host, artifact(single=True))
    (tmp_path / "disk").mkdir()
    pull_it = (
        'mount -t tmpfs -o size=2M none disk && cd disk && "$0" -m ingot.driver.commands.cli pull "$1" m; '
        "echo left $(ls -A | wc -l)"
    )
    command = ["unshare", "-Urm", "sh", "-c", pull_it, sys.executable, str(to(server.host))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "m: 0.00 GB, but" not in done.stderr and "MB are free there" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "left 0" in done.stdout


def test_a_disk_that_is_full_meanwhile_is_one_line_and_no_artifact(
    server, artifact, tmp_path, monkeypatch
):
    push(server.host, artifact(single=True))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "pull", full)
    with pytest.raises(Refused, match=r"m: the disk is full, expected room for 3\.1 MB"):
        get(Connection(to(server.host)), tmp_path / "p/m", [])
    assert not (tmp_path / "p/m").exists()


def test_a_file_system_that_does_not_tell_its_size_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    with room.room(tmp_path / "m", tmp_path / "partial", 1 << 40):
        pass


def test_what_another_repository_refuses_is_sent(server, artifact):
    """One that is gone, or of another login: docker-registry answers 404 or opens an upload."""
    one, origin = artifact(), published.Origin({"buildDefinition": {"buildType": "test"}}, b"{}")
    connection = Connection(to(server.host, "alone/a"), "pull,push")
    sources = ["no/such", "Not A Repository"]
    _, sent = published.publish(connection, one, "1.0", None, origin, sources=sources)
    assert sent >= one.output["size"]


def test_a_document_that_nobody_would_read_is_not_published(server, artifact):
    one = artifact(single=True)
    connection = Connection(to(server.host, "large"), "pull,push")
    origin = published.Origin({"buildDefinition": {}}, b" " * (5 << 20))
    with pytest.raises(Refused, match=r"m.irpa.cdx.json: 5.2 MB, expected 4 MiB at most"):
        published.publish(connection, one, "1.0", None, origin)


def test_a_tar_layer_is_the_same_whenever_it_is_made(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 700)
    long = "/".join(["deep" * 10] * 6)
    one = TarLayer(long, 700, path)
    os.utime(path, (1, 1))
    assert one.digest() == TarLayer(long, 700, path).digest() != TarLayer("g", 700, path).digest()
    with (tmp_path / "t.tar").open("wb") as out, one.open() as source:
        shutil.copyfileobj(source, out)
    with tarfile.open(tmp_path / "t.tar") as found:
        (member,) = found.getmembers()
        assert (member.name, member.mtime, member.uid) == (f"models/{long}", 0, 0)
    assert (tmp_path / "t.tar").stat().st_size == one.nbytes


@pytest.mark.parametrize(
    "record, said",
    [
        ({"result": "failed"}, "failed, expected passed"),
        ({"sha256": "0" * 64}, "but its record is about 000000000000"),
        ({"server": "1.2.1+standin"}, "made by a stand-in"),
    ],
)
def test_what_is_not_verified_as_it_is_is_not_published(record, said, server, artifact):
    with pytest.raises(Refused, match=said):
        push(server.host, artifact(**record), name="refused")
    with pytest.raises(Refused, match="missing, expected a manifest"):
        transfer.get_manifest(Connection(to(server.host, "refused")), "1.0")


def test_a_blob_of_another_repository_is_mounted(server, artifact, tmp_path):
    push(server.host, artifact(single=True))
    one = artifact(single=True)
    content = transfer.Content(one.files[0]["digest"], one.files[0]["size"], tmp_path / "m.irpa")
    sent = transfer.push(
        Connection(to(server.host, "mounted"), "pull,push"), [content], None, ["a/b"]
    )
    assert sent == 0


# Faults


@pytest.mark.parametrize(
    "fault",
    [
        ("PUT", "uploads", {"cut_upload": 100_000}),
        ("PUT", "uploads", {"status": 500}),
        ("POST", "uploads", {"status": 429, "headers": {"Retry-After": "0"}}),
        ("HEAD", "blobs", {"status": 503}),
        ("PUT", "manifests", {"status": 502}),
    ],
)
def test_a_push_survives_what_passes(fault, server, artifact, tmp_path):
    method, pattern, what = fault
    with registries.Proxy(server) as proxy:
        proxy.fault(method, pattern, times=2, **what)
        name = f"push/{hashlib.sha256(repr(fault).encode()).hexdigest()[:8]}"
        push(proxy.host, artifact(), name=name)
    get(Connection(to(server.host, name)), tmp_path / "back", [])
    assert same(tmp_path / "back")


def ranges(proxy):
    return [
        headers.get("Range") for method, path, headers in proxy.seen
        if method == "GET" and "blobs/" in path
    ]  # fmt: skip


@pytest.mark.parametrize("cut, kept", [(0, None), (2_500_000, "bytes=2500000-")])
def test_a_pull_goes_on_where_it_was_cut(cut, kept, server, artifact, tmp_path):
    push(server.host, artifact(single=True), name="single")
    with registries.Proxy(server) as proxy:
        proxy.fault("GET", "blobs/sha256", cut=cut)
        get(Connection(to(proxy.host, "single")), tmp_path / "back", [])
        assert ranges(proxy) == [None, kept]
    assert (tmp_path / "back").read_bytes() == FILES["model.irpa"]


def test_a_later_run_goes_on_too_and_begins_again_where_no_range_is_known(
    server, artifact, tmp_path
):
    push(server.host, artifact(single=True), name="single")
    (tmp_path / "r").mkdir()
    with registries.Proxy(server) as proxy:
        found = Connection(to(proxy.host, "single"))
        proxy.fault("GET", "blobs/sha256", cut=1_100_000)
        proxy.fault("GET", "blobs/sha256", times=5, cut=0)
        with pytest.raises(Refused, match="was cut 6 times; pull again, it goes on"):
            get(found, tmp_path / "r/back", [])
        proxy.fault("GET", "blobs/sha256", whole=True)
        get(found, tmp_path / "r/back", [])
        assert ranges(proxy)[-1] == "bytes=1100000-"
    assert (tmp_path / "r/back").read_bytes() == FILES["model.irpa"]
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["back"]


def test_what_another_pull_left_is_no_part_of_this_one(server, artifact, tmp_path):
    push(server.host, artifact(), name="left")
    (tmp_path / "r").mkdir()
    with registries.Proxy(server) as proxy:
        found = Connection(to(proxy.host, "left"))
        proxy.fault("GET", "blobs/sha256", times=6, cut=0)
        with pytest.raises(Refused, match="was cut 6 times"):
            get(found, tmp_path / "r/back", ["model.irpa"])
        get(found, tmp_path / "r/back", ["config.json"])
    assert [path.name for path in (tmp_path / "r/back").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "what, said",
    [
        ({"flip": 5}, "other bytes come as sha256:"),
        ({"extra": 1}, "more than 3145728 bytes come as"),
        ({"status": 404}, "the registry answers 404"),
        ({"cut": 0}, "was cut 6 times; pull again"),
        ({"endless": True}, "more than 3145728 bytes come as"),
    ],
)
def test_wrong_bytes_are_never_taken(what, said, server, artifact, tmp_path):
    push(server.host, artifact(single=True), name="single")
    (tmp_path / "empty").mkdir()
    with registries.Proxy(server) as proxy:
        proxy.fault("GET", "blobs/sha256", times=99, **what)
        with pytest.raises(Refused, match=said):
            get(Connection(to(proxy.host, "single")), tmp_path / "empty/back", [])
    assert not (tmp_path / "empty/back").exists()
    get(Connection(to(server.host, "single")), tmp_path / "empty/back", [])
    assert (tmp_path / "empty/back").read_bytes() == FILES["model.irpa"]
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["back"]


def test_one_file_of_a_bundle_is_pulled_alone(server, artifact, tmp_path):
    push(server.host, artifact())
    get(Connection(to(server.host)), tmp_path / "one", ["deep/tokenizer.json"])
    found = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert found == [tmp_path / "one/deep/tokenizer.json"]
    with pytest.raises(Refused, match=r"has no other\.json, expected a file of it"):
        get(Connection(to(server.host)), tmp_path / "none", ["other.json"])


def test_an_index_names_its_manifests_by_digest_alone(server, artifact, tmp_path):
    digest, _ = push(server.host, artifact(), name="pinned")
    found = Connection(to(server.host, "pinned"), "pull,push")
    index, _ = transfer.get_manifest(found, digest)
    for one in index["manifests"]:
        one["digest"] = "latest"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "get_manifest", lambda connection, name: (index, name))
        with pytest.raises(Refused, match="'latest' is no sha256 digest"):
            get(found, tmp_path / "back", [])


def test_a_damaged_store_publishes_nothing(server, artifact):
    one = artifact(single=True)
    blob = one.store.blob(one.files[0]["digest"])
    blob.chmod(0o644)
    blob.write_bytes(b"other")
    with pytest.raises(Refused, match="not whole in the store any more"):
        push(server.host, one, name="damaged")


def test_a_refused_upload_is_not_sent_again(server, artifact):
    with registries.Proxy(server) as proxy:
        proxy.fault("PUT", "uploads", times=99, status=403)
        with pytest.raises(Refused, match="403"):
            push(proxy.host, artifact(single=True), name="forbidden")
        sent = [path.partition("digest=")[2] for method, path, _ in proxy.seen if method == "PUT"]
        assert sent and len(sent) == len(set(sent))


@pytest.mark.parametrize(
    "asked, seconds",
    [("0", 0), ("7", 7), ("9999", 60), ("nan", 60), ("-5", 0), ("Mon, 01 Jan 1990 00:00:00 GMT", 0),
     ("Mon, 99999999999999999999 Jan 2020 00:00:00 GMT", 0.01), ("soon", 0.01)],
)  # fmt: skip
def test_a_registry_is_asked_again_when_it_says_so_but_within_a_minute(asked, seconds):
    assert connections.pause(0, asked) == pytest.approx(seconds)
    assert all(0 < connections.pause(attempt) <= 60 for attempt in range(9))


HOSTILE = {
    "above": "../evil", "absolute": "/tmp/evil", "backslash": "..\\evil", "dots": "a/../../evil",
    "line": "a\nb", "empty": "", "dot": "./a", "drive": "c:evil", "terminal": "a\x1b[2J",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE.values(), ids=list(HOSTILE))
def test_a_name_that_would_leave_the_folder_is_refused(name, server, tmp_path):
    hostile(server, "hostile", [name])
    with pytest.raises(Refused, match=r"would leave the folder|expected a path inside"):
        get(Connection(to(server.host, "hostile")), tmp_path / "deep/back", [])
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["deep"])


@pytest.mark.parametrize(
    "names, said",
    [
        (["a", "a"], "two files of one name"),
        (["a", "A"], "are one name to some file systems"),
        (["a" * 201], "is too long a name"),
        (["a/" * 600 + "a"], "is too long a name"),
        (["a", "a/b"], "is a file and a folder"),
        (["x/a", "X/b"], "are one name"),
        ([], "0 files"),
    ],
)
def test_names_that_are_one_file_are_refused(names, said, server, tmp_path):
    hostile(server, "twice", names)
    with pytest.raises(Refused, match=said):
        get(Connection(to(server.host, "twice")), tmp_path / "back", [])
    assert not (tmp_path / "back").exists()


def hostile(server, name, names):
    """A ModelPack with these file names, pushed by somebody else."""
    found = Connection(to(server.host, name), "pull,push")
    content = transfer.of_bytes(b"evil")
    config = transfer.of_bytes(b"{}")
    transfer.push(found, [content, config])
    layers = [
        modelpack.described(
            modelpack.LAYER.format(kind="weight"), content.digest, 4, **{modelpack.FILEPATH: one}
        )
        for one in names
    ]
    manifest = modelpack.manifest(
        modelpack.described(modelpack.MODEL_CONFIG, config.digest, 2), layers,
        artifactType=modelpack.ARTIFACT, annotations={TITLE: "m"},
    )  # fmt: skip
    transfer.put_manifest(found, manifest, "1.0")


# Who we are


def log_in(folder, host, **entry):
    (folder / "docker").mkdir(exist_ok=True)
    secret = base64.b64encode(f"{registries.USER}:{registries.SECRET}".encode()).decode()
    (folder / "docker/config.json").write_text(
        json.dumps({"auths": {host: entry or {"auth": secret}}})
    )


def test_a_password_and_tls_of_its_own(artifact, tmp_path, monkeypatch):
    with registries.Registry(tmp_path / "r", htpasswd=True, tls=True) as server:
        with pytest.raises(Refused, match="certificate verify failed"):
            push(server.host, artifact())
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "r/cert.pem"))
        with pytest.raises(Refused, match=r"401 \(expected access as pull,push: docker login"):
            push(server.host, artifact())
        log_in(tmp_path, server.host)
        digest, _ = push(server.host, artifact())
        get(Connection(to(server.host)), tmp_path / "back", [])
    assert same(tmp_path / "back") and digest


def test_tokens_are_asked_for_and_asked_for_again_when_they_end(server, artifact, tmp_path):
    with registries.Proxy(server, token=True) as proxy:
        with pytest.raises(Refused, match="its token server: the registry answers 401"):
            push(proxy.host, artifact(), name="tokens")
        log_in(tmp_path, proxy.host)
        proxy.fault("PUT", "uploads", ended=True)
        push(proxy.host, artifact(), name="tokens")
        get(Connection(to(proxy.host, "tokens")), tmp_path / "back", [])
        assert same(tmp_path / "back") and proxy.issued >= 2


def test_a_credential_helper_is_asked(tmp_path, monkeypatch):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text('{"credHelpers": {"ghcr.io": "mine"}}')
    with pytest.raises(Refused, match="docker-credential-mine cannot be run"):
        credentials.of("ghcr.io")
    program = tmp_path / "docker-credential-mine"
    program.write_text(
        '#!/bin/sh\nread host\necho "{\\"Username\\": \\"me\\", \\"Secret\\": \\"$host\\"}"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = credentials.of("ghcr.io")
    assert (found.user, found.secret) == ("me", "ghcr.io") and "ghcr.io" not in repr(found)
    assert credentials.of("quay.io") is None


def test_the_most_specific_entry_is_taken_as_podman_does(tmp_path):
    def auth(word):
        return {"auth": base64.b64encode(f"{word}:x".encode()).decode()}

    (tmp_path / "docker").mkdir()
    old = "https://index.docker.io/v1/"
    entries = {"quay.io/other": auth("a"), "quay.io": auth("b"), old: auth("c")}
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": entries}))
    for place, user in (("quay.io/me/x", "b"), ("quay.io/other/x", "a"), ("quay.io/others", "b"),
                        ("index.docker.io/x", "c")):  # fmt: skip
        assert credentials.of(place).user == user
    assert credentials.of("ghcr.io/me") is None


def test_a_password_is_sent_to_no_other_machine_in_clear_text(server, artifact, tmp_path):
    with registries.Proxy(server) as proxy:
        log_in(tmp_path, proxy.host)
        headers = {"WWW-Authenticate": 'Bearer realm="http://auth.example/token",service="s"'}
        proxy.fault("HEAD", "blobs", times=99, status=401, headers=headers)
        with pytest.raises(
            Refused, match=r"its token server is http://auth\.example/token, expected"
        ):
            push(proxy.host, artifact(), name="clear")


class Thief:
    """Where a registry's redirection leads: it asks for a password, and keeps what comes."""

    def __init__(self, folder, kind, hops):
        self.seen, thief = [], self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                thief.seen.append((self.path, dict(self.headers), body))
                if self.path == "/token":
                    status, headers = 200, {}
                elif hops and self.path == "/blob":
                    status, headers = 307, {"Location": "/again"}
                else:
                    realm = f"https://{thief.host}/token"
                    challenge = {
                        "Basic": 'Basic realm="r"',
                        "Bearer": f'Bearer realm="{realm}",service="s"',
                    }
                    status, headers = 401, {"WWW-Authenticate": challenge[kind]}
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b'{"token": "t"}' if self.path == "/token" else b"")

            do_GET = do_HEAD = do_POST = do_PUT = handle_any

        registries.certificate(folder)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.host = f"127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()


ASKED = {
    "a manifest": ("GET", "manifests", lambda connection: listed.read(connection)),
    "a blob": ("GET", "blobs", lambda connection: transfer.get(
        connection, {"digest": f"sha256:{'1' * 64}", "size": 1})),
    "whether there is a blob": ("HEAD", "blobs", lambda connection: transfer.push(
        connection, [transfer.of_bytes(b"x")])),
}  # fmt: skip


@pytest.mark.parametrize("hops", [0, 1], ids=["at once", "by two hops"])
@pytest.mark.parametrize("kind", ["Basic", "Bearer"])
@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
@pytest.mark.parametrize("secret", ["password", "identitytoken"])
def test_nobody_but_the_registry_gets_a_password(
    secret, asked, kind, hops, server, tmp_path, monkeypatch
):
    method, pattern, ask = asked
    with (
        registries.Proxy(server, token=secret == "password") as proxy,
        Thief(tmp_path, kind, hops) as thief,
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        log_in(
            tmp_path,
            proxy.host,
            **({"identitytoken": registries.SECRET} if secret != "password" else {}),
        )
        proxy.fault(
            method, pattern, 99, status=307, headers={"Location": f"https://{thief.host}/blob"}
        )
        with pytest.raises(Refused, match="of another host, to which no password goes"):
            ask(Connection(to(proxy.host, "a"), "pull,push"))
        assert thief.seen and not [path for path, *_ in thief.seen if path == "/token"]
        assert not [
            found
            for _, headers, body in thief.seen
            for found in [headers.get("Authorization"), body]
            if found
        ]


def test_no_secret_is_in_what_is_said(server, artifact, tmp_path):
    log_in(tmp_path, server.host, auth="not base64 " + registries.SECRET)
    with pytest.raises(Refused) as refused:
        credentials.of(server.host)
    assert registries.SECRET not in str(refused.value)
    (tmp_path / "docker/config.json").write_text(
        json.dumps({"auths": {"h": {"auth": {"x": registries.SECRET}}}})
    )
    with pytest.raises(Refused, match="no registry's credentials") as refused:
        credentials.of("h")
    assert registries.SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text, part",
    [
        ("docker://h/a", "no reference"),
        ("oci://h", "''"),
        ("oci://h/A/b:1", "'A/b'"),
        ("oci://h/a..b:1", "'a..b'"),
        ("oci://h/a:-x", "'-x'"),
        ("oci://h/a@sha256:0", "'sha256:0'"),
        ("oci://h ost/a:1", "'h ost'"),
        ("oci://h/" + "a" * 201, "aaa"),
    ],
)
def test_a_reference_that_is_none_is_one_line(text, part):
    with pytest.raises(Refused, match=part):
        reference.parse(text)


def test_a_reference_says_where_it_leads():
    found = reference.parse("oci://ghcr.io:443/me/models:1.0")
    assert str(found) == "oci://ghcr.io:443/me/models:1.0" and not found.loopback
    assert reference.parse("oci://localhost:5000/a").loopback
    assert reference.parse("oci://[::1]:5000/a").loopback
    assert not reference.parse("oci://localhost.evil.example/a").loopback


def test_other_hosts_are_spoken_to_by_tls_alone(server, artifact, tmp_path):
    far = reference.parse("oci://registry.example/a:1")
    assert Connection(far).base == "https://registry.example/v2/"
    assert Connection(far, plain=True).base == "http://registry.example/v2/"
    push(server.host, artifact(single=True), name="single")
    with registries.Proxy(server) as proxy:
        elsewhere = {"Location": "http://127.0.0.2:1/blob?signature=s3cret-Pass"}
        proxy.fault("GET", "blobs/sha256", status=307, headers=elsewhere)
        with pytest.raises(
            Refused, match=r"leads to http://127\.0\.0\.2:1/blob, expected https"
        ) as said:
            get(Connection(to(proxy.host, "single")), tmp_path / "back", [])
    assert registries.SECRET not in str(said.value)
