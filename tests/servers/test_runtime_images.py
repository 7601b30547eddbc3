"""Images built without a daemon: by skopeo, through a registry, and run; and what a fine-tune pushes."""

import json
import shutil
import subprocess
import tarfile

import pytest
from test_rayserve import bundle
from test_registry import needs_servers, server, to
from test_registry import quick as quick_registry

from conftest import ROOT, once
from ingot.registry import listed, published
from ingot.registry.connection import Connection
from ingot.registry.modelpack import IMAGES
from ingot.store.records import Action, Store

__all__ = ["bundle", "quick_registry", "server"]  # fixtures
pytestmark = [
    needs_servers,
    pytest.mark.root("a Debian of its own, and a chroot"),
    pytest.mark.skipif(
        not shutil.which("mmdebstrap"), reason="needs mmdebstrap (Debian: mmdebstrap)"
    ),
]
INSIDE = """
set -e
ip link set lo up
mount -t proc proc $1/proc
mount -t tmpfs dev $1/dev
mkdir $1/dev/shm
mount -t tmpfs shm $1/dev/shm
for one in null zero random urandom; do touch $1/dev/$one; mount --bind /dev/$one $1/dev/$one; done
ray=$(chroot $1 /bin/bash -lc 'ray --version')
echo "$ray"
chroot $1 /usr/bin/env -i HOME=/root PATH=/opt/ingot/bin:/usr/bin:/bin PYTHON=python \
    /models/demo/serve --port 18000 >$1/said 2>&1 &
server=$!
for i in $(seq 600); do
    if grep -q "ready after\\|^error" $1/said || ! kill -0 $server; then break; fi
    sleep 0.2
done
PYTHON=python3 $1/models/demo/smoke http://127.0.0.1:18000 || true
kill $server
wait $server || true
cat $1/said
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A tar of Debian with Python, as docs/serving.md makes it."""
    with once(tmp_path_factory, "debian") as (folder, done):
        if not done:
            words = [
                "mmdebstrap",
                "--variant=minbase",
                "--include=python3,ca-certificates,wget,libgomp1",
            ]
            subprocess.run(
                [*words, "bookworm", folder / "base.tar"], check=True, capture_output=True
            )
    return folder / "base.tar"


def ingot(*words):
    command = [ROOT / ".venv/bin/ingot", "image", "rayserve", *words]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(layout, folder):
    def blob(digest):
        return layout / "blobs/sha256" / digest.removeprefix("sha256:")

    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_bytes())
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer["digest"])) as tar:
            tar.extractall(folder)  # of our own image; Python 3.11.2 knows no filter
    return folder


@pytest.mark.slow
def test_an_image_built_twice_is_one_and_it_serves(root, bundle, server, tmp_path):
    said = [ingot("--base", root, "--to", tmp_path / name) for name in "ab"]
    digests = {text.split()[-1] for text in said}
    assert len(digests) == 1
    name = f"{server.host}/runtime/rayserve"
    pushed = ingot("--base", root, "--to", f"oci://{name}:1").split("\n")
    assert pushed[0] == f"{name}@{digests.pop()}"
    again = ingot("--base", f"oci://{pushed[0]}", "--to", f"oci://{name}:2")
    assert "of which" in again
    skopeo = ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{name}:1"]
    raw = json.loads(subprocess.run(skopeo, check=True, capture_output=True).stdout)
    assert 4 < len(raw["layers"]) < 20
    shutil.rmtree(tmp_path / "b")
    place = unpacked(tmp_path / "a", tmp_path / "r")
    shutil.copytree(bundle, place / "models/demo")
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--propagation=private", "sh", "-c", INSIDE, "sh", place],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:1] == ["ray, version 2.60.0"] and len(lines) > 3, done.stdout + done.stderr
    assert lines[1].startswith("/cpu: 40 tokens are the reference's"), done.stdout
    assert lines[2].startswith("/acpu: 40 tokens are the reference's"), done.stdout
    assert lines[-1].endswith("stopped")


def test_a_fine_tune_pushes_the_layers_that_it_changed(server, tmp_path, monkeypatch, store):
    """An image of weights has a layer per file: of M.onnx and its kin, one per layer of the model."""
    monkeypatch.chdir(tmp_path)
    names = [f"model.layers.{number}.data" for number in range(20)]

    def publish(tag, changed):
        place = tmp_path / "m.onnx"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for number, name in enumerate(names):
            (place / name).write_bytes(bytes([number, changed == number]) * 100_000)
        found = Store()
        assert found.prepare()
        output = {**found.take(place), "title": "m.onnx"}
        kept = found.record(
            Action("folder", f"{changed + 2:02d}" * 32, {"rule": "f"}, [output], {}, {})
        )
        verified = tmp_path / "m.onnx.verified.json"
        one = published.Artifact(found, kept, output, verified, [output])
        record = {"sha256": one.digest, "result": "passed", "reference": "r", "checks": {}}
        verified.write_text(json.dumps(record))
        connection = Connection(to(server.host, "tuned", tag), "pull,push")
        origin = published.Origin({"buildDefinition": {}}, b"{}")
        published.publish(connection, one, tag, None, origin, image=True)
        found = listed.read(Connection(to(server.host, "tuned", tag)))
        platforms = [found.manifest(found.one(role))["layers"] for role in IMAGES]
        assert len(platforms) == 2 and platforms[0] == platforms[1], "data are the same on all"
        return {one["digest"]: one["size"] for one in platforms[0]}

    before, after = publish("base", -1), publish("tune", 7)
    new = [size for digest, size in after.items() if digest not in before]
    assert len(new) == 1 and 200_000 < new[0] <= 1.2 * 200_000
