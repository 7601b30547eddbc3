"""Files that are published in parts: what a fine-tune sends, what comes back, what is refused."""

import json
import struct

import numpy as np
import pytest
from test_registry import get, needs_servers, quick, server, to

import registry as registries
from ingot.base.refused import Refused
from ingot.registry import listed, modelpack, parts, published, transfer
from ingot.registry.connection import Connection
from ingot.registry.modelpack import FILEPATH, MODEL
from ingot.store.records import Action, Store

__all__ = ["quick", "server"]  # fixtures
pytestmark = needs_servers
NAMES = [f"layers.{number}.weight" for number in range(20)]
KEY = "cd" * 32


def shard(seeds):
    """A safetensors file: 20 tensors of 200 kB, and after each a norm of 128 bytes."""
    header, data = {}, b""
    for name, seed in zip(NAMES, seeds, strict=True):
        for one, count in ((name, 50_000), (name + ".norm", 32)):
            values = np.random.default_rng(seed).random(count, np.float32).tobytes()
            header[one] = {
                "dtype": "F32", "shape": [count], "data_offsets": [len(data), len(data) + len(values)]
            }  # fmt: skip
            data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


BASE = list(range(20))
TUNED = [*range(19), 99]  # 5 % of the tensors


@pytest.fixture
def push(tmp_path, monkeypatch, store, server):
    """push("name:1", data, rule) publishes a file that is on record; how many bytes were sent."""
    monkeypatch.chdir(tmp_path)

    def run(place, data, rule=parts.TENSORS, host=None, title="m.safetensors"):
        path = tmp_path / title
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        found = Store()
        assert found.prepare()
        output = {**found.take(path), "title": title}
        kept = found.record(Action("file", KEY, {"rule": "file"}, [output], {}, {}))
        verified = tmp_path / f"{title}.verified.json"
        one = published.Artifact(found, kept, output, verified, [output])
        said = {"sha256": one.digest, "result": "passed", "reference": "r", "checks": {}}
        verified.write_text(json.dumps(said))
        name, tag = place.split(":")
        connection = Connection(to(host or server.host, name, tag), "pull,push")
        origin = published.Origin({"buildDefinition": {}}, b"{}")
        return published.publish(connection, one, tag, None, origin, rule, image=True)[1]

    return run


def test_a_fine_tune_sends_the_tensors_that_it_changed(push, server, tmp_path):
    push("tune:base", shard(BASE))
    sent = push("tune:tuned", shard(TUNED))
    changed = 200_000 + 128
    assert changed < sent <= 1.1 * changed
    assert push("whole:base", shard(BASE), "") and push("whole:tuned", shard(TUNED), "") > 8_000_000
    for tag, seeds in (("base", BASE), ("tuned", TUNED)):
        get(Connection(to(server.host, "tune", tag)), tmp_path / tag, [])
        assert (tmp_path / tag).read_bytes() == shard(seeds)
    assert not list(tmp_path.glob(".*"))


def test_the_parts_in_the_order_of_their_names_are_the_file(push, server, tmp_path):
    push("cat:1", shard(BASE), "1000000")
    found = listed.read(Connection(to(server.host, "cat", "1")))
    layers = found.manifest(found.one(MODEL))["layers"]
    names = {one["annotations"][FILEPATH]: one for one in layers}
    assert len(names) == 5 and all(one["size"] <= 1_000_000 for one in layers)
    data = b""
    for name in sorted(names):
        transfer.pull(found.connection, names[name]["digest"], names[name]["size"], tmp_path / name)
        data += (tmp_path / name).read_bytes()
    assert data == shard(BASE)
    assert found.digests("image") == []


def test_a_pull_that_is_cut_goes_on_with_the_parts_that_came(push, server, tmp_path):
    push("cut:1", shard(BASE), "1000000")
    (tmp_path / "r").mkdir()
    with registries.Proxy(server) as proxy:
        proxy.fault("GET", "blobs/", times=3)  # the first pass
        proxy.fault("GET", "blobs/", times=99, cut=0)
        with pytest.raises(Refused, match="was cut 6 times; pull again"):
            get(Connection(to(proxy.host, "cut", "1")), tmp_path / "r/back", [])
    with registries.Proxy(server) as proxy:
        get(Connection(to(proxy.host, "cut", "1")), tmp_path / "r/back", [])
        asked = [path for method, path, _ in proxy.seen if "blobs/" in path]
        assert 0 < len(asked) < 5
    assert (tmp_path / "r/back").read_bytes() == shard(BASE)
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["back"]


def changed(server, name, edit):
    """Its ModelPack manifest as somebody else makes it, at a tag of its own."""
    found = listed.read(Connection(to(server.host, name, "1"), "pull,push"))
    manifest = found.manifest(found.one(MODEL))
    edit(manifest["layers"])
    transfer.put_manifest(found.connection, manifest, "evil")
    return Connection(to(server.host, name, "evil"))


ATTACKS = {
    "in another order": lambda layers: layers.reverse(),
    "one twice": lambda layers: layers.append(layers[-1]),
    "one left out": lambda layers: layers.pop(1),
    "of two files": lambda layers: layers[1]["annotations"].update({modelpack.PART_OF: "other"}),
    "another's part": lambda layers: layers.append(
        {
            **layers[0],
            "annotations": {FILEPATH: f".{layers[1]['annotations'][modelpack.PART_OF]}.part-00001"},
        }
    ),
    "outside": lambda layers: [
        one["annotations"].update({modelpack.PART_OF: "../evil"}) for one in layers
    ],
    "no whole": lambda layers: [one["annotations"].pop(modelpack.WHOLE) for one in layers],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_parts_that_are_not_the_file_are_not_taken(attack, push, server, tmp_path):
    push("evil:1", shard(BASE), "1000000")
    (tmp_path / "r").mkdir()
    with pytest.raises(Refused, match=r"not taken|two files of one name|would leave the folder"):
        get(changed(server, "evil", attack), tmp_path / "r/back", [])
    assert not (tmp_path / "r/back").exists() and not (tmp_path / "evil").exists()


def test_a_file_without_tensors_or_of_one_part_stays_whole(push, server):
    push("small:1", b"text", title="m.onnx")
    found = listed.read(Connection(to(server.host, "small", "1")))
    assert len(found.digests("image")) == 1


def test_a_registry_of_limited_layers_gets_parts_by_itself():
    assert parts.rule_for("ghcr.io", "") == str(8 << 30)
    assert parts.rule_for("ghcr.io", parts.TENSORS) == parts.TENSORS
    assert parts.rule_for("127.0.0.1:5000", "") == ""


def test_more_parts_than_a_manifest_holds_are_refused(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(20_000))
    with pytest.raises(Refused, match="10000 parts, expected 9000 at most"):
        parts.cut(path, "f", "2")
