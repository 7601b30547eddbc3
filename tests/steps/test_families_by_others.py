"""Each family's table against transformers' modules and llama.cpp's converter, which know nothing of it."""

import json

import pytest

import checkpoints
import families
from conftest import ROOT, convert, llama_cpp, once
from ingot.model.checkpoint.safetensors import BESIDE, outside
from ingot.model.config import read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL
from ingot.model.specs import specs_of

PIECED = ("Gemma", "Phi3")  # with a SentencePiece vocabulary
CASES = [(name, bias) for name, one in FAMILIES.items() for bias in (None, *one.biases)]


@pytest.fixture(scope="module")
def made(forked, pieces, tmp_path_factory):
    """made(case): a checkpoint of transformers' own names, random, and llama.cpp's GGUF file of it."""

    def make(case):
        with once(tmp_path_factory, "families") as (folder, filled):
            places = {one: folder / f"{one[0]}-{one[1]}" for one in CASES}
            if not filled:
                fill(places, forked, pieces)
        return places[case], json.loads((places[case] / "tensors.json").read_bytes())

    return make


def fill(places, forked, pieces):
    for (name, bias), place in places.items():
        place.mkdir()
        family = FAMILIES[name]
        said = {"architectures": [name], "model_type": family.model_type}
        sees = family.inner != ""
        wanted = ["Gemma3ForCausalLM"] if sees else [name]
        said = next((one for one in families.BASES if one["architectures"] == wanted), said)
        size = {"head_dim": 32} if family.names_head_dim else {}
        more = {bias: True} if bias else {}
        said = {"pad_token_id": 1016, "rope_scaling": None, **said, "quantization_config": None}
        config = checkpoints.llama_config(**{**said, **size, **more})
        kept = families.NULL
        config = {key: one for key, one in config.items() if one is not None or key in kept}
        checkpoints.write_json(place / "config.json", families.seeing(config) if sees else config)
        if name.startswith(PIECED):
            for path in (pieces / "plain").iterdir():
                (place / path.name).write_bytes(path.read_bytes())
        else:
            checkpoints.tokenizer_of_demo(place)
    script = ROOT / "tests/doubles/transformers_tensors.py"
    done = forked("transformers", script, *places.values())
    assert done.returncode == 0, done.stderr
    for place, shapes in zip(places.values(), json.loads(done.stdout), strict=True):
        (place / "tensors.json").write_text(json.dumps(shapes))
    asked = [[str(place), str(place), "llama-bpe"] for place in places.values()]
    done = llama_cpp(forked, asked, ["f16"])
    assert all((place / "f16.gguf").exists() for place in places.values()), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_tensors_are_those_of_transformers_own_modules(case, made):
    place, theirs = made(case)
    ours = specs_of(read_config(place / "config.json", case[0], ALL), "f16")
    found = {name: [*shape] for spec in ours for name, shape in spec.source_shapes.items()}
    assert found == {
        outside(name): one for name, one in theirs.items() if not name.startswith(BESIDE)
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_gguf_file_is_llama_cpps_byte_for_byte(case, made, ok, tmp_path):
    place, _ = made(case)
    convert(ok, place, tmp_path / "m.gguf", pre="default" if case[0].startswith(PIECED) else None)
    assert (tmp_path / "m.gguf").read_bytes() == (place / "f16.gguf").read_bytes()
