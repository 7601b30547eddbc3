"""Each field of a config.json is honoured, refused, or known to have no effect; none goes unsaid."""

import json
import re

import pytest

import checkpoints
import families
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.model.config import HONOURED, read_config, say_unknown
from ingot.model.families.llama import LLAMA
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL
from ingot.model.known_fields import NEUTRAL, NEUTRAL_ITEMS, WITHOUT_EFFECT

# What the configuration classes of transformers 4.52.1 and 5 take, read off their signatures: LlamaConfig,
# MistralConfig, and what every configuration has (test_reference.py asks the installed one).
OTHER = {  # of each field that is refused: a value that means another model
    "hidden_act": "gelu",
    "partial_rotary_factor": 0.5, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "query_pre_attn_scalar": 256, "logits_scaling": 16.0, "logit_scale": 0.0625,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078,
    "clip_qkv": 8.0, "use_qk_norm": True, "qk_norm": True, "no_rope_layers": [0, 1],
    "num_local_experts": 8, "num_experts": 64, "position_embedding_type": "alibi",
    "is_encoder_decoder": True, "pruned_heads": {"0": [1]}, "add_cross_attention": True,
}  # fmt: skip
CHANGED = {  # of each field that is honoured: another value, and which number of the model it is
    "vocab_size": (1200, "vocab"), "hidden_size": (512, "hidden"), "num_hidden_layers": (5, "layers"),
    "intermediate_size": (640, "ffn"), "num_attention_heads": (16, "heads"),
    "num_key_value_heads": (2, "kv_heads"), "head_dim": (64, "head_dim"),
    "max_position_embeddings": (1024, "context"), "rms_norm_eps": (1e-6, "rms_eps"),
    "rope_theta": (1e6, "rope_theta"), "rope_scaling": (None, "rope"),
    "tie_word_embeddings": (True, "tied"),
    "rope_parameters": ({"rope_type": "default", "rope_theta": 7.0}, "rope_theta"),
    "attention_bias": (True, "attention_bias"), "mlp_bias": (True, "mlp_bias"),
    "quantization_config": (families.FP8["quantization_config"], "scaled"),
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """read(**changes) is the model that a Llama 3.1's config.json says."""

    def run(can=ALL, **changes):
        config = checkpoints.llama_config(**{"rope_scaling": checkpoints.LLAMA3_ROPE, **changes})
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_config(tmp_path / "config.json", can=can)

    return run


def test_each_field_is_in_one_table_only():
    tables = (HONOURED, tuple(NEUTRAL), tuple(NEUTRAL_ITEMS), WITHOUT_EFFECT)
    listed = [name for table in tables for name in table]
    assert len(listed) == len(set(listed))
    assert set(OTHER) == set(NEUTRAL)


@pytest.mark.parametrize("field", OTHER)
def test_what_would_be_other_arithmetic_is_refused_by_its_name(field, read):
    with pytest.raises(Refused, match=rf"config\.json: {field} is .* it would be left out"):
        read(**{field: OTHER[field]})
    for neutral in NEUTRAL[field]:
        read(**{field: neutral})


def test_a_list_of_one_kind_of_layer_is_taken_and_of_another_refused(read):
    read(layer_types=["full_attention"] * 3)
    for odd in (["full_attention", "sliding_attention"], [{}], "full_attention"):
        with pytest.raises(Refused, match=r"layer_types is .* expected full_attention only"):
            read(layer_types=odd)


@pytest.mark.parametrize("field", CHANGED)
def test_what_is_honoured_changes_the_model_and_its_gguf_header(field, read):
    value, name = CHANGED[field]
    old = {"rope_scaling": None, "rope_theta": None} if field == "rope_parameters" else {}
    one, other = read(), read(**{**old, field: value})
    assert getattr(one, name) != getattr(other, name)
    if name in ("rope", "tied", "attention_bias", "mlp_bias", "scaled"):
        return  # tensors
    assert metadata.properties(one, "f16") != metadata.properties(other, "f16")


@pytest.mark.parametrize("field", WITHOUT_EFFECT)
def test_what_has_no_effect_leaves_the_model_as_it_is(field, read):
    assert read(**{field: 7}) == read()


@pytest.mark.parametrize("field, value", [
    ("attention_bias", True), ("mlp_bias", True), ("rope_scaling", {"type": "linear", "factor": 2}),
    ("rope_scaling", {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64}),
])  # fmt: skip
def test_what_only_gguf_can_say_is_refused_elsewhere(field, value, read):
    read(**{field: value})
    with pytest.raises(Refused, match="which this format cannot express; ask for GGUF"):
        read(can=(), **{field: value})


def test_an_attention_factor_that_libllama_would_not_use_is_refused(read):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    read(rope_scaling={**yarn, "attention_factor": 1.1386294361119891})
    with pytest.raises(Refused, match=r"attention_factor is 1\.1, expected 1\.13863: libllama"):
        read(rope_scaling={**yarn, "attention_factor": 1.1})


def test_scalings_without_a_type_or_with_a_field_that_nobody_knows_are_refused(read, tmp_path):
    config = checkpoints.llama_config()
    for scaling, said in (
        ({"factor": 8.0}, "has a factor and no rope_type"),
        ({**checkpoints.LLAMA3_ROPE, "mscale": 1.0}, "mscale in rope_scaling"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
        with pytest.raises(Refused, match=said):
            read_config(tmp_path / "config.json")


def test_a_field_that_nobody_knows_is_said(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**checkpoints.llama_config(), "new_norm": 1}))
    say_unknown(tmp_path / "config.json", LLAMA)
    assert "config.json: new_norm: neither Ingot nor" in capsys.readouterr().err


def test_the_document_names_each_field_that_is_honoured_or_refused():
    text = (ROOT / "docs/config.md").read_text()
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`([a-z_]+)`", rows))
    assert named == {*HONOURED, *NEUTRAL, *NEUTRAL_ITEMS}
    for family in FAMILIES.values():
        assert {*family.reads, *family.neutral} - {"intermediate_size"} <= {
            *re.findall(r"`([a-z_]+)`", text)
        }
