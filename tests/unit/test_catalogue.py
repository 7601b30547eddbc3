"""What a catalogue may say: each fault is a line that names the file, the key and what was expected."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.schema import load


@pytest.mark.parametrize(
    "text, reason",
    [
        ("models: [", r"mine\.yaml:2: not YAML"),
        ("[a, b]", r"mine\.yaml: holds a list, expected a catalogue"),
        (
            "hardware: {cpu: {program: f64}}",
            r"hardware\.cpu\.program: f64, expected one of decomposed",
        ),
    ],
)
def test_a_catalogue_that_is_none_is_one_line(text, reason, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(Refused, match=reason):
        load(ROOT, str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"path": "models/{x}"}, "models.demo.path: 'models/{x}', expected a path without {, } or"),
        ({"path": "models/demo\n"}, "models.demo.path: 'models/demo\\n', expected a path without"),
        ({"path": "~/demo"}, "models.demo.path: '~/demo', expected a path without"),
        ({"corpus": "~/c.txt"}, "models.demo.corpus: '~/c.txt', expected a path without"),
        (
            {"hub": "a/b"},
            "mine.yaml: models.demo: has hub and path, expected one of them; give an entry",
        ),
        ({"revision": 7}, "mine.yaml: models.demo.revision: 7, expected a commit, 40 digits"),
        ({"iree": None}, "models.demo.iree: nothing there, expected object; write it, or remove"),
        (
            {"iree": {"compile_flags": ["--iree-llvmcpu-target-cpu=host"]}},
            "mine.yaml: models.demo.iree.compile_flags.0: '--iree-llvmcpu-target-cpu=host', expected a "
            "flag that begins with --, and none that means this machine",
        ),
        ({"iree": {"export_flags": ["--x-path=/a"]}}, "'--x-path=/a', expected a flag that begins"),
        ({7: 1}, "models.demo.7: no such key"),
        ({"trtllm": {"pp": 1.0}}, "1.0 is not of type 'integer'"),
        ({"tp": [True]}, "True is not one of"),
        (
            {"quants": ["q8_0", "q4_0"]},
            "mine.yaml: models.demo.quants.0: 'q8_0' is not one of those that demo.quants holds: the "
            "converter writes it; leave it out, and ask for artifacts/demo.q8_0.gguf",
        ),
        (
            {"quants": ["q4_k_x"]},
            "'q4_k_x' is not one of libllama's types, such as q4_k_m; nearest: 'q4_k_s', 'q4_k_m'",
        ),
        (
            {"way": "theirs"},
            "mine.yaml: models.demo.way: 'theirs' is not one of own, upstream; see",
        ),
        (
            {"vllm": {"dtype": "float31"}},
            "is not one of auto, float32, float16, bfloat16; nearest: 'float32'",
        ),
        (
            {"limits": {"gguf": {"mean_kl": 0.1}}},
            "mine.yaml: models.demo.limits: 'gguf' is not one of the types and schemes of artifacts, such "
            "as q4_k_m, int8_sq, mmproj or, for one without, the model's dtype; see",
        ),
        ({"limits": {"mmprj": {"mean_kl": 0.1}}}, "model's dtype; nearest: 'mmproj'"),
        ({"limits": {"int8_sp": {"mean_kl": 0.1}}}, "model's dtype; nearest: 'int8_sq', 'int8'"),
        ({"hardwre": "cpu"}, "models.demo.hardwre: no such key, expected hardware; rename"),
    ],
)
def test_a_catalogue_is_held_to_its_schema_to_the_letter(changes, text, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump({"models": {"demo": changes}}))
    with pytest.raises(Refused, match=re.escape(text)):
        load(ROOT, str(own))


def test_a_models_name_ends_with_its_last_letter(tmp_path):
    own = tmp_path / "mine.yaml"
    entry = {
        "path": "x",
        "name": "x",
        "architecture": "LlamaForCausalLM",
        "pre_tokenizer": "tekken",
    }
    own.write_text(yaml.safe_dump({"models": {"evil\n": entry}}))
    with pytest.raises(
        Refused, match=r"mine\.yaml: models: 'evil\\n', expected a name of lower-case"
    ):
        load(ROOT, str(own))


@pytest.mark.parametrize(
    "entry, said",
    [
        ({"path": "x", "hub": "a/b", "shards": 1}, "has hub and path, expected one of them"),
        ({"hub": "a/b"}, "has hub alone, expected hub and shards"),
        ({}, "names no source, expected hub, or path"),
        ({"path": "x", "adapter": {"base": "demo", "hub": "a/b"}}, "expected hub and revision"),
        ({"hub": "a/b", "shards": {"a": 1}}, "{'a': 1}, expected a whole number from 1, or a list"),
        ({"hub": "a/b", "shards": "4"}, "'4', expected a whole number from 1, or a list"),
    ],
)
def test_a_source_that_is_none_or_two_is_said_in_few_words(entry, said, tmp_path):
    own = tmp_path / "mine.yaml"
    named = {"name": "x", "architecture": "LlamaForCausalLM", "pre_tokenizer": "tekken"}
    own.write_text(yaml.safe_dump({"models": {"x": {**named, **entry}}}))
    with pytest.raises(Refused, match=re.escape(said)) as refused:
        load(ROOT, str(own))
    assert len(str(refused.value)) < len(str(own)) + 200


def test_every_pattern_of_the_schema_has_words_for_it():
    def patterns(value):
        if isinstance(value, dict):
            if "pattern" in value:
                yield value
            for one in value.values():
                yield from patterns(one)
        for one in value if isinstance(value, list) else ():
            yield from patterns(one)

    found = list(patterns(json.loads((ROOT / "models.schema.json").read_text())))
    assert found and all(one.get("expected") for one in found)


LOCAL = "models.local.yaml"  # of which tests have none else


def test_a_catalogue_of_the_folder_that_is_no_file_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schema, "LOCAL", LOCAL)
    Path(LOCAL).mkdir()
    with pytest.raises(
        Refused, match=r"models\.local\.yaml: a folder, expected a catalogue; rename"
    ):
        load(ROOT)
    Path(LOCAL).rmdir()
    Path(LOCAL).symlink_to("gone.yaml")
    with pytest.raises(
        Refused, match=r"models\.local\.yaml: a link to gone.yaml, which is missing"
    ):
        load(ROOT)
    Path(LOCAL).unlink()
    os.mkfifo(LOCAL)
    with pytest.raises(Refused, match=r"models\.local\.yaml: no plain file"):
        load(ROOT)


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "# mine\nmodels:\n",
            "models: nothing there, expected object; write it, or remove the line",
        ),
        ("other: 1\n", "other: no such key, expected one of keep, "),
    ],
)
def test_a_fault_in_the_folders_catalogue_names_that_file(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schema, "LOCAL", LOCAL)
    Path(LOCAL).write_text(text)
    with pytest.raises(Refused, match=f"^models.local.yaml: {said}"):
        load(ROOT)
