"""YAML from outside: each reader refuses in one line what another would take, or never end with."""

import re
from pathlib import Path

import pytest

from ingot.base import yaml_text
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, site
from ingot.driver.release import card, matrix
from ingot.serving.kuberay import manifest
from ingot.serving.rayserve import applications

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
WRONG = {
    "aliases of aliases": (BOMB, "more than 200000 values"),
    "an alias of itself": ("a: &a [*a]\n", r"\*a is an alias of what holds it"),
    "too deep": ("a: " + "[" * 3000, "more than 64 collections in one another"),
    "too deep, by lines": (
        "".join(f"{' ' * n}a:\n" for n in range(300)),
        "more than 64 collections",
    ),
    "too long": ("a: " + "x" * (5 << 20), "5242883 letters, expected at most"),
    "a number that takes for ever": ("a: 1" + ":00" * 100_000 + "\n", "300001 letters without"),
    "a key twice, far apart": (
        "a: 1\n" + "".join(f"b{n}: 1\n" for n in range(90_000)) + "a: 1\n",
        "a is there twice",
    ),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "a is there twice"),
    "no YAML": ("a: [\n", r"not YAML \(.*expected"),
    "a list as a key": ("? [1]\n: 2\n", r"not YAML \(.*(unhashable|not hashable)"),
    "no such tag": (
        "a: !!python/object:os.system x\n",
        r"not YAML \(could not determine a constructor",
    ),
    "no such day": ("a: 2026-13-40\n", r"not YAML \(month must be in"),
}


@pytest.mark.parametrize("text, why", WRONG.values(), ids=list(WRONG))
def test_every_reader_refuses_it_in_one_line(text, why, tmp_path, monkeypatch):
    place = tmp_path / "it.yaml"
    place.write_text(text)
    monkeypatch.setenv(site.FILE, str(place))
    for reader in (lambda: schema.read(place), site.read, lambda: matrix.read(place),
                   lambda: manifest.read(place)):  # fmt: skip
        with pytest.raises(Refused, match=rf"it\.yaml(:\d+)?: ({why})") as said:
            reader()
        assert "\n" not in str(said.value)
    (tmp_path / "README.md").write_text(f"---\n{text}\n---\n")
    assert card.licence(tmp_path, "mit").name == "mit"
    document = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "x"},
                "spec": {"serveConfigV2": text, "rayClusterConfig": {"headGroupSpec": {
                    "template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}}}  # fmt: skip
    said = [str(fault) for fault in manifest.faults(document)]
    assert re.search(why, " ".join(said)), said


def test_a_fault_is_named_by_its_line(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(Refused, match=r"x\.yaml:3: a is there twice, expected it once; rename"):
        yaml_text.only(tmp_path / "x.yaml", "a catalogue")


@pytest.mark.parametrize(
    "data, said",
    [
        (
            "models: {}\n".encode("utf-16"),
            ":1: not UTF-8 (byte 0xff), expected a catalogue; save it",
        ),
        (
            "a: 1\nb: Größe\n".encode("latin-1"),
            ":2: not UTF-8 (byte 0xf6), expected a catalogue; save it",
        ),
    ],
)
def test_a_file_in_another_encoding_is_refused_by_its_line(data, said, tmp_path):
    (tmp_path / "x.yaml").write_bytes(data)
    with pytest.raises(Refused, match=re.escape(f"x.yaml{said} as UTF-8")):
        yaml_text.only(tmp_path / "x.yaml", "a catalogue")


def test_a_file_that_may_not_be_read_is_to_be_made_readable(tmp_path, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Refused, match="Permission denied, expected to read it; chmod u"):
        yaml_text.only(Path("x.yaml"), "a catalogue")


def test_aliases_and_merges_are_taken():
    (found,) = yaml_text.documents(
        "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: [*a, *a]\nd: {<<: *b, y: 4}\n"
    )
    assert found["d"] == {"x": 1, "y": 4}
    assert found["b"] == {"x": 1, "y": 3} and found["c"] == [found["a"]] * 2


def test_an_option_that_is_no_yaml_is_a_text():
    words = ["--dtype", "float32", "--chat-template", "{% if x %}", "--max-num-seqs=4", "--no-x"]
    found = applications.keywords(words)
    assert found["chat_template"] == "{% if x %}" and found["max_num_seqs"] == 4
