"""A family of models is one table: what is held of each, and that one more is a file and a line."""

import pytest
import yaml

import checkpoints
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.formats.gguf import metadata
from ingot.model.config import read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL, FEATURES
from ingot.model.specs import specs_of

SIZES = {"hidden", "ffn", "head", "q", "kv"}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def family(request):
    return request.param


def config(family, folder, **changes):
    said = {"architectures": [family.architecture], "model_type": family.model_type}
    path = folder / "config.json"
    checkpoints.write_json(
        path, checkpoints.llama_config(**{**said, "rope_scaling": None, **changes})
    )
    return read_config(path, family.architecture, ALL)


def test_a_table_says_what_exists(family):
    assert FAMILIES[family.architecture] is family
    assert {*family.needs} <= {*FEATURES} and {*family.always} <= {*family.biases} <= {*FEATURES}
    for one in family.layer.values():
        assert {*one.shape} <= SIZES and one.heads in ("", "heads", "kv_heads")
    names = [one.gguf for one in family.layer.values()]
    assert len(set(names)) == len(names)


def test_each_tensor_has_one_name_in_gguf_and_its_size(family, tmp_path):
    found = specs_of(config(family, tmp_path), "f16")
    assert len({spec.name for spec in found}) == len(found) == len({spec.source for spec in found})
    of = {spec.source: spec.shape for spec in found}
    said = config(family, tmp_path)
    assert of["model.layers.0.self_attn.q_proj.weight"] == (said.heads * said.head_dim, said.hidden)


def test_its_header_has_its_own_name_and_lacks_what_the_table_says(family, tmp_path):
    keys = [kv.key for kv in metadata.hyperparameters(config(family, tmp_path), "f16")]
    own = [key for key in keys if not key.startswith("general.")]
    assert all(key.startswith(f"{family.gguf}.") for key in own)
    assert not {f"{family.gguf}.{word}" for word in family.gguf_lacks} & {*keys}


def test_the_catalogue_takes_each_family_and_those_that_the_converter_knows():
    catalogue = yaml.safe_load((ROOT / "models.yaml").read_text())
    for name in FAMILIES:
        catalogue["models"]["llama8b"] |= {"architecture": name, "way": "own"}
        schema.complete(catalogue, ROOT)
        assert targets.why_not("artifacts/llama8b.gguf", catalogue) is None
    entry = catalogue["models"]["llama8b"]
    entry["architecture"] = "Mamba"
    with pytest.raises(Refused, match=r"models.llama8b.way: own, but Ingot has no table of Mamba"):
        schema.complete(catalogue, ROOT)
    for name, reason in (("MambaForCausalLM", None), ("Mamba", "does not know Mamba")):
        for key in ("way", "needs"):  # as they were filled in
            entry.pop(key)
        entry["architecture"] = name
        schema.complete(catalogue, ROOT)
        said = targets.why_not("artifacts/llama8b.gguf", catalogue)
        assert said is reason is None or reason in said
        assert f"does not know {name}" in targets.why_not("artifacts/llama8b.onnx", catalogue)


def test_a_field_of_its_own_that_is_other_arithmetic_is_refused(family, tmp_path):
    for key, neutral in family.neutral.items():
        assert config(family, tmp_path, **{key: neutral[-1]})
        with pytest.raises(Refused, match=f"{key} is True, expected False; it would be left out"):
            config(family, tmp_path, **{key: True})


def test_the_documents_name_each_family(family):
    name = family.architecture.removesuffix("ForCausalLM")
    for page in ("README.md", "docs/config.md"):
        assert name in (ROOT / page).read_text(), page
