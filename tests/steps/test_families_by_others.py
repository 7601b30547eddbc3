"""Each family's table against transformers' modules and llama.cpp's converter, which know nothing of it."""

import json

import numpy as np
import pytest

import checkpoints
from conftest import ROOT, convert, llama_cpp, once
from ingot.model.config import read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL
from ingot.model.specs import specs_of

CASES = [(name, bias) for name, one in FAMILIES.items() for bias in (None, *one.biases)]


@pytest.fixture(scope="module")
def made(forked, tmp_path_factory):
    """made(case): a checkpoint of transformers' own names, random, and llama.cpp's GGUF file of it."""

    def make(case):
        with once(tmp_path_factory, "families") as (folder, filled):
            places = {one: folder / f"{one[0]}-{one[1]}" for one in CASES}
            if not filled:
                fill(places, forked)
        return places[case], json.loads((places[case] / "tensors.json").read_bytes())

    return make


def fill(places, forked):
    for (name, bias), place in places.items():
        place.mkdir()
        family = FAMILIES[name]
        said = {"architectures": [name], "model_type": family.model_type, "rope_scaling": None}
        size = {"head_dim": 32} if family.names_head_dim else {}
        config = checkpoints.llama_config(**said, **size, **({bias: True} if bias else {}))
        checkpoints.write_json(place / "config.json", config)
        checkpoints.tokenizer_of_demo(place)
    script = ROOT / "tests/doubles/transformers_tensors.py"
    done = forked("transformers", script, *places.values())
    assert done.returncode == 0, done.stderr
    for place, shapes in zip(places.values(), json.loads(done.stdout), strict=True):
        random = np.random.default_rng(7)
        (place / "tensors.json").write_text(json.dumps(shapes))
        values = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        checkpoints.write_shard(
            place / "model.safetensors",
            {name: ("F32", one.shape, one.astype("<f4").tobytes()) for name, one in values.items()},
        )
    asked = [[str(place), str(place), "llama-bpe"] for place in places.values()]
    done = llama_cpp(forked, asked, ["f16"])
    assert all((place / "f16.gguf").exists() for place in places.values()), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_tensors_are_those_of_transformers_own_modules(case, made):
    place, theirs = made(case)
    ours = specs_of(read_config(place / "config.json", case[0], ALL), "f16")
    assert {spec.source: [*spec.shape] for spec in ours} == theirs


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_gguf_file_is_llama_cpps_byte_for_byte(case, made, ok, tmp_path):
    place, _ = made(case)
    convert(ok, place, tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == (place / "f16.gguf").read_bytes()
