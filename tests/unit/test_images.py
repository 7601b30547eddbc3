"""Images of toolchains: what follows from what, and what an image may stand on."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.commands import image as command
from ingot.registry.images import base as base_of
from ingot.registry.images import image as image_of
from ingot.registry.images import layers, packages
from ingot.registry.images.layers import Member

PYTHON = "usr/bin/python3.11"
LARGE = os.urandom(packages.LARGE)


def toolchain(place, version="1.0", large=LARGE):
    """A small environment as uv makes it: scripts with its own path, records with their digests."""
    site = place / "lib/python3.11/site-packages"
    files = {
        "big/weights.so": large, "small/__init__.py": b"x = 1\n",
        f"big-{version}.dist-info/METADATA": b"Name: big\n",
        f"big-{version}.dist-info/RECORD": f"big/weights.so,,\nbig-{version}.dist-info/METADATA,,".encode(),
        f"big-{version}.dist-info/INSTALLER": str(place).encode(),
        "small/__pycache__/__init__.cpython-311.pyc": os.urandom(20), "pip/main.py": b"",
        "pip-26.dist-info/METADATA": b"", "setuptools/x.py": b"",
    }  # fmt: skip
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    (place / "bin").mkdir()
    plain = f"#!{place}/bin/python\nimport sys\n"
    long = f"#!/bin/sh\n'''exec' '{place}/bin/python' \"$0\" \"$@\"\n' '''\nimport sys\n"
    for name, text in {
        "ray": plain,
        "serve": long,
        "pip3": plain,
        "tool": "#!/bin/sh\nls\n",
    }.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    (place / "bin/python").symlink_to("/usr/bin/python3.11")
    return place


def rootfs(path, *names):
    with tarfile.open(path, "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return path


@pytest.fixture
def made(tmp_path):
    def run(place, base=None):
        folder = tmp_path / f"layers-{place.name}"
        folder.mkdir(exist_ok=True)
        source = base or rootfs(tmp_path / "base.tar", "./", f"./{PYTHON}")
        return image_of.build(base_of.read(str(source), folder), place, folder)

    return run


def names_of(content):
    with tarfile.open(content.source) as tar:
        return {member.name: member for member in tar}


def test_an_image_follows_from_its_packages_and_not_from_where_they_lie(made, tmp_path):
    first = toolchain(tmp_path / "one")
    second = toolchain(tmp_path / "some longer place/two")
    for path in second.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (5, 5))
    one, two = made(first), made(second)
    assert one.digest == two.digest and one.manifest == two.manifest
    everything = {
        name: one for content in two.contents[1:-1] for name, one in names_of(content).items()
    }
    assert not [name for name in everything if "__pycache__" in name or "/pip" in name]
    assert everything["opt/ingot/bin/ray"].mode == 0o755
    assert {member.mtime for member in everything.values()} == {0}
    assert {member.uid for member in everything.values()} == {0}
    assert everything["usr/local/bin/ray"].linkname == "/opt/ingot/bin/ray"
    with tarfile.open(two.contents[-2].source) as tar:
        for name in ("ray", "serve"):
            said = tar.extractfile(f"opt/ingot/bin/{name}").read()
            assert said == b"#!/opt/ingot/bin/python\nimport sys\n", name
        assert b"home = /usr/bin" in tar.extractfile("opt/ingot/pyvenv.cfg").read()
    for content in two.contents:
        if isinstance(content.source, Path):
            assert str(tmp_path).encode() not in content.source.read_bytes()


def test_a_new_version_of_a_package_sends_its_layer_alone(made, tmp_path):
    before = made(toolchain(tmp_path / "one"))
    after = made(toolchain(tmp_path / "two", "1.1", os.urandom(packages.LARGE)))
    had = {content.digest for content in before.contents}
    new = [content for content in after.contents if content.digest not in had]
    assert len(new) == 2, "its layer, and the configuration that names it"
    assert sum(content.size for content in new) < 1.01 * packages.LARGE


def test_an_image_stands_on_another_with_its_settings(made, tmp_path):
    first = made(toolchain(tmp_path / "one"))
    config = {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"], "User": "1000"}
    own = json.loads(first.contents[-1].source) | {"config": config}
    data = layers.Content(*_described(own))
    first.contents[-1] = data
    first.manifest["config"] |= {"digest": data.digest, "size": data.size}
    (tmp_path / "layout").mkdir()
    image_of.write_layout(first, tmp_path / "layout", tmp_path)
    second = made(toolchain(tmp_path / "two", "2.0"), tmp_path / "layout")
    found = json.loads(second.contents[-1].source)
    assert found["config"] == {
        "Env": ["PATH=/opt/ingot/bin:/usr/bin", "LANG=C.UTF-8"],
        "User": "1000",
    }
    assert len(found["rootfs"]["diff_ids"]) == len(second.manifest["layers"])
    assert second.manifest["layers"][: len(first.manifest["layers"])] == first.manifest["layers"]


def _described(document):
    from ingot.base.digest import canonical
    from ingot.registry.transfer import of_bytes

    found = of_bytes(canonical(document))
    return found.digest, found.size, found.source


def test_a_gzipped_layer_is_read_as_well(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("usr/local/bin/python3.11"))
    (tmp_path / "l.tar.gz").write_bytes(gzip.compress(data.getvalue()))
    content = layers.Content("sha256:x", 1, tmp_path / "l.tar.gz")
    assert base_of.python_of([content], "base") == "usr/local/bin/python3.11"


def test_a_base_that_cannot_carry_it_is_refused(made, tmp_path):
    place = toolchain(tmp_path / "one")
    (tmp_path / "text").write_text("no tar" * 200)
    shutil.copytree(place, tmp_path / "other")
    shutil.rmtree(tmp_path / "other/lib")
    for source, said in (
        (tmp_path / "missing.tar", "No such file.*expected a tar of a root file system"),
        (rootfs(tmp_path / "old.tar", "usr/bin/python3.9"), "has no usr/bin/python3.11"),
        (tmp_path / "text", "is no tar"),
        ("oci://127.0.0.1:9/python:3.11", "expected a digest"),
    ):
        with pytest.raises(Refused, match=said):
            made(place, source)
    with pytest.raises(Refused, match=r"expected a toolchain of Python 3\.11"):
        made(tmp_path / "other")
    (tmp_path / "arm").mkdir()
    index = {
        "manifests": [
            {
                "platform": {"os": "linux", "architecture": "arm64"},
                "digest": f"sha256:{64 * '0'}",
                "size": 1,
            }
        ]
    }
    (tmp_path / "arm/index.json").write_text(json.dumps(index))
    with pytest.raises(Refused, match="has no image, or several, for linux/amd64"):
        made(place, tmp_path / "arm")


def test_a_layer_has_its_folders_once_and_in_order(tmp_path):
    found = layers.write(
        [Member("b/c/d", b"1"), Member("a", "b/c/d"), Member("b/c/a", b"2")], tmp_path
    )
    assert list(names_of(found)) == ["a", "b", "b/c", "b/c/a", "b/c/d"]
    assert found.source.name == found.digest.removeprefix("sha256:")
    assert found.size == found.source.stat().st_size


def test_a_damaged_or_hostile_layout_is_refused(made, tmp_path):
    image = made(toolchain(tmp_path / "one"))

    def refused(edit, said):
        place = tmp_path / "layout"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        image_of.write_layout(image, place, tmp_path)
        edit(place)
        with pytest.raises(Refused, match=said):
            base_of.read(str(place), tmp_path)

    def manifest(change):
        """An edited manifest, with its right digest in the index."""

        def edit(place):
            found = json.loads(json.dumps(image.manifest))
            change(found)
            digest, size, data = _described(found)
            (place / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(data)
            index = {"manifests": [{"digest": digest, "size": size}]}
            (place / "index.json").write_text(json.dumps(index))

        return edit

    def flip(place):
        blob = (
            place / "blobs/sha256" / image.manifest["layers"][1]["digest"].removeprefix("sha256:")
        )
        data = bytearray(blob.read_bytes())
        blob.unlink()
        data[1000] ^= 1
        blob.write_bytes(data)

    refused(flip, "other bytes than its name says")
    refused(
        manifest(lambda m: m["layers"][0].update(digest="sha256:../../../etc/passwd")),
        "is no digest",
    )
    refused(manifest(lambda m: m["layers"][0].update(digest="/etc/passwd")), "is no digest")
    refused(manifest(lambda m: m["layers"].pop()), "diff_ids of")
    refused(manifest(lambda m: m.pop("layers")), "no image .KeyError")
    refused(lambda place: (place / "index.json").write_text("[]"), "no image")
    refused(
        lambda place: (place / "index.json").write_text('{"manifests": []}'),
        "has no image, or several",
    )
    refused(lambda place: shutil.rmtree(place / "blobs"), "no image .FileNotFoundError")


def test_an_interpreter_that_a_layer_removes_is_none(tmp_path):
    found = [
        Member(PYTHON, b"elf"),
        Member("usr/bin/.wh.python3.11", b""),
        Member("usr/.wh..wh..opq", b""),
    ]
    base, removed, emptied = [layers.write([one], tmp_path) for one in found]
    assert base_of.python_of([removed, base], "b") == PYTHON
    for layer in (removed, emptied):
        with pytest.raises(Refused, match=r"has no usr/bin/python3\.11"):
            base_of.python_of([base, layer], "b")


def test_a_packed_root_file_system_is_refused(tmp_path):
    (tmp_path / "base.tar.gz").write_bytes(
        gzip.compress(rootfs(tmp_path / "t", PYTHON).read_bytes())
    )
    with pytest.raises(Refused, match="packed by gzip, expected a plain tar"):
        base_of.read(str(tmp_path / "base.tar.gz"), tmp_path)
    with pytest.raises(Refused, match="a tar of an image, expected its folder"):
        base_of.read(str(rootfs(tmp_path / "saved.tar", "manifest.json")), tmp_path)


def test_a_base_that_is_written_again_changes_no_image(made, tmp_path):
    image = made(toolchain(tmp_path / "one"))
    (tmp_path / "layout").mkdir()
    image_of.write_layout(image, tmp_path / "layout", tmp_path / "layers-one")
    (tmp_path / "base.tar").write_bytes(b"another")
    assert base_of.read(str(tmp_path / "layout"), tmp_path).python == PYTHON


def test_what_packages_bring_beside_python_is_shipped(made, tmp_path):
    place = toolchain(tmp_path / "one")
    for name, data in (
        ("bin/py-spy", b"\x7fELF"),
        ("lib/libiomp5.so", b"so"),
        ("share/LICENSE", b"l"),
    ):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
        (place / name).chmod(0o755)
    record = place / packages.SITE / "big-1.0.dist-info/RECORD"
    rows = [
        "../../../bin/py-spy,sha256=x,4",
        "../../../lib/libiomp5.so,,",
        "../../../share/LICENSE,,",
    ]
    record.write_text(
        "\n".join([record.read_text(), *rows, "big/__pycache__/x.pyc,,", "../../../../up,,"])
    )
    image = made(place)
    found = {
        name: one for content in image.contents[1:-1] for name, one in names_of(content).items()
    }
    assert {
        f"opt/ingot/{name}" for name in ("bin/py-spy", "lib/libiomp5.so", "share/LICENSE")
    } <= set(found)
    text = packages.record(record).decode()
    assert (
        "../../../bin/py-spy,,\n" in text and "__pycache__" not in text and "INSTALLER" not in text
    )
    with tarfile.open(image.contents[-2].source) as tar:
        assert tar.extractfile("opt/ingot/bin/tool").read() == b"#!/bin/sh\nls\n"
        config = tar.extractfile("opt/ingot/pyvenv.cfg").read()
    assert b"include-system-site-packages = false" in config


def test_the_command_says_where_it_went_and_what_it_refuses(made, tmp_path, monkeypatch, capsys):
    place = toolchain(tmp_path / "one")
    monkeypatch.setattr(command.toolchains, "build", lambda root, name: place)

    def run(to, base=None):
        base = base or rootfs(tmp_path / "base.tar", PYTHON)
        words = {"toolchain": "rayserve", "base": str(base), "to": str(to), "plain_http": False}
        command.run(tmp_path, Namespace(**words))

    killed = "import os; from pathlib import Path; from ingot.base.atomic import partial_of\n"
    place_of = f"Path({str(tmp_path / 'image')!r})"
    killed += f"with partial_of({place_of}) as at: at.mkdir(); os.kill(os.getpid(), 9)"
    subprocess.run(
        [sys.executable, "-c", killed], check=False, env={"PYTHONPATH": str(ROOT / "scripts")}
    )
    assert list(tmp_path.glob(".*.partial")), "what a killed one leaves"
    run(tmp_path / "image")
    assert f"{tmp_path}/image: " in capsys.readouterr().out
    assert (tmp_path / "image/oci-layout").is_file() and not list(tmp_path.glob(".*.partial"))
    for to, said in (
        (tmp_path / "image", "exists, expected nothing there"),
        (tmp_path / "none/image", "missing, expected a folder"),
        ("oci://127.0.0.1:9/name", "expected a tag"),
    ):
        with pytest.raises(Refused, match=said):
            run(to)
    with pytest.raises(Refused, match="packed by gzip"):
        (tmp_path / "packed").write_bytes(gzip.compress(b""))
        run(tmp_path / "other", tmp_path / "packed")
    assert not list(tmp_path.glob(".*.partial")) and not (tmp_path / "other").exists()
