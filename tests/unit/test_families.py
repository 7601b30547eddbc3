"""A family of models is one table: what is held of each, and that one more is a file and a line."""

import re

import pytest

import checkpoints
import families
from conftest import ROOT
from forgeries import FORGERIES
from forging import RIGHT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.formats.gguf import metadata
from ingot.model.config import read_config
from ingot.model.families.deepseek import V3
from ingot.model.families.family import KEYS
from ingot.model.families.gemma2 import GEMMA2
from ingot.model.families.phi3 import PHI3
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL, FEATURES
from ingot.model.specs import specs_of

SIZES = {"hidden", "ffn", "head", "q", "kv", "qkv", "gate_up", "experts", "expert", "heads"}
SIZES |= {
    "q_rank",
    "kv_rank",
    "qk",
    "q_whole",
    "plain",
    "value",
    "attended",
    "kv_a",
    "dense",
    "shared",
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def family(request):
    return request.param


def config(family, folder, **changes):
    said = {"architectures": [family.architecture], "model_type": family.model_type}
    sees = family.inner != ""
    wanted = ["Gemma3ForCausalLM"] if sees else said["architectures"]
    said = next((one for one in families.BASES if one["architectures"] == wanted), said)
    path = folder / "config.json"
    found = checkpoints.llama_config(**{"rope_scaling": None, **said, **changes})
    checkpoints.write_json(path, families.seeing(found) if sees else found)
    return read_config(path, family.architecture, ALL)


# Llama and Mistral are of every test; the shape that sees is made of Gemma 3's
IN_ALL = ("LlamaForCausalLM", "MistralForCausalLM", "Gemma3ForConditionalGeneration")


def test_a_family_is_in_the_lists_that_other_tests_walk(family):
    """A family that is in none of them is compared with nobody."""
    if family.architecture in IN_ALL:
        return
    of_it = [family.architecture]
    assert any(one["architectures"] == of_it for one in families.BASES), (
        "BASES of doubles/families.py"
    )
    shapes = {name for name, one in families.SHAPES.items() if one["architectures"] == of_it}
    assert shapes, "SHAPES of doubles/families.py"
    assert shapes & {one.of for one in FORGERIES}, "doubles/forgeries.py: a wrong converter of it"
    assert shapes & {name for name, _ in RIGHT}, "RIGHT of doubles/forging.py"


def test_a_table_says_what_exists(family):
    assert FAMILIES[family.architecture] is family
    assert {*family.needs} <= {*FEATURES} and {*family.always} <= {*family.biases} <= {*FEATURES}
    for one in family.layer.values():
        assert {*one.shape} <= SIZES and one.heads in ("", "heads", "kv_heads")
    names = [one.gguf for one in family.layer.values()]
    assert len(set(names)) == len(names)


def test_each_tensor_has_one_name_in_gguf_and_its_size(family, tmp_path):
    found = specs_of(config(family, tmp_path), "f16")
    parts = {(spec.source, spec.stack, spec.part) for spec in found}
    assert len({spec.name for spec in found}) == len(found) == len(parts)
    of = {spec.source: spec.shape for spec in found}
    said = config(family, tmp_path)
    q, kv = said.heads * said.head_dim, said.kv_heads * said.head_dim
    name, rows = ("qkv", q + 2 * kv) if "joined" in family.needs else ("q", q)
    if said.latent:
        name, rows = ("q_a", said.latent.q_rank) if said.latent.q_rank else ("q", q)
    assert of[f"model.layers.0.self_attn.{name}_proj.weight"] == (rows, said.hidden)


def test_its_header_has_its_own_name_and_lacks_what_the_table_says(family, tmp_path):
    keys = [kv.key for kv in metadata.hyperparameters(config(family, tmp_path), "f16")]
    own = [key for key in keys if not key.startswith("general.")]
    assert all(key.startswith(f"{family.gguf}.") for key in own)
    known = {*KEYS, *GEMMA2.gguf_keys, *PHI3.gguf_keys, *V3.gguf_keys, "rope.freq_base_swa"}
    if "rope.scaling" in family.gguf_keys:  # which stands for it
        known -= {"rope.scaling.original_context_length"}
    assert {*family.gguf_keys} <= known and len({*family.gguf_keys}) == len(family.gguf_keys)
    assert not {f"{family.gguf}.{word}" for word in known if word not in family.gguf_keys} & {*keys}


def test_the_catalogue_takes_each_family_and_those_that_the_converter_knows():
    catalogue = schema.read(ROOT / schema.FILE)
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
        with pytest.raises(Refused, match=f"{key} is 7, expected .*; it would be left out"):
            config(family, tmp_path, **{key: 7})


def test_what_it_must_say_is_refused_otherwise(family, tmp_path):
    for key, value in family.says.items():
        for other in (not value, None):
            with pytest.raises(
                Refused, match=f"{key} is {other}, expected {value}: llama.cpp knows no"
            ):
                config(family, tmp_path, **{key: other})


BLOCKS = families.FP8["quantization_config"]
MSCALES = families.DEEPSEEK_V3["rope_scaling"]
LONG, PART = families.LONG, {"rope_type": "default"}
NUMBERS = {  # of families: what they read, another value, and what is wrong with it
    "MixtralForCausalLM": [
        ("num_local_experts", None, "num_experts and num_local_experts are missing"),
        ("num_experts_per_tok", 5, "at most 4"),
        ("num_experts", 8, "num_experts is 8 and num_local_experts is 4, expected one value"),
    ],
    "Qwen3MoeForCausalLM": [("moe_intermediate_size", None, "moe_intermediate_size is null")],
    "SmolLM3ForCausalLM": [
        ("no_rope_layers", [1, 0, 1, 0, 1], "others than that of 4 layers the last has no rope"),
        ("no_rope_layers", None, None), ("no_rope_layers", [], "others than that of 4"),
    ],
    "GraniteForCausalLM": [
        ("logits_scaling", None, "logits_scaling is null"),
        ("head_dim", 16, "head_dim is 16, expected 32"),
        ("attention_multiplier", -1.0, "attention_multiplier is -1.0"),
    ],
    "Phi3ForCausalLM": [
        ("head_dim", 64, "head_dim is 64, expected 32"),
        ("partial_rotary_factor", 1.5, "partial_rotary_factor is 1.5, expected 1.0"),
        ("partial_rotary_factor", 0.01, "leaves 0 of 32 values, expected an even number"),
        ("partial_rotary_factor", 0.35, "leaves 11 of 32 values, expected an even number"),
        ("partial_rotary_factor", 0.5, None), ("sliding_window", 64, None),
        ("rope_scaling", LONG | {"long_factor": [1.0] * 15}, "long_factor has 15 numbers, expected 16"),
        ("rope_scaling", LONG | {"factor": 3.0}, "rope_scaling's factor is 3.0, expected 2 by its"),
        ("rope_scaling", LONG | {"attention_factor": 2.0}, "attention_factor is 2.0, expected 1.0"),
        ("rope_scaling", {"type": "longrope"}, "lacks 'short_factor', expected a number; add it"),
        ("rope_scaling", LONG | {"short_factor": [0.0] * 16}, "short_factor"),
        ("rope_scaling", LONG | {"type": "su"}, "rope_type is su, expected longrope, as newer revisions"),
        ("rope_scaling", LONG | {"type": "default"}, "has a short_factor and no rope_type, expected both"),
        ("rope_scaling", LONG | {"original_max_position_embeddings": 1024}, None),
        ("rope_scaling", LONG | {"original_max_position_embeddings": 64},
         "is 1024 and rope_scaling.original_max_position_embeddings is 64, expected one value"),
        ("rope_scaling", {"type": "yarn", "factor": 2.0}, "rope's yarn has no place"),
    ],
    "LlamaForCausalLM": [
        ("rope_scaling", checkpoints.LLAMA3_ROPE | {"long_factor": [1.0]}, "long_factor in rope_scaling"),
        ("rope_scaling", {"long_factor": [1.0]}, "has a long_factor and no rope_type, expected both"),
        ("rope_scaling", LONG, "rope's longrope has no place in GGUF of a llama"),
        ("rope_parameters", PART | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("rope_parameters", PART | {"partial_rotary_factor": 1.0}, None),
    ],
    "SeedOssForCausalLM": [
        ("mlp_bias", True, "mlp_bias is true, expected false of a SeedOssForCausalLM"),
        ("attention_out_bias", True, "attention_out_bias is True, expected False; it would be left out"),
        ("num_key_value_heads", None, "num_key_value_heads is missing"),
        ("attention_bias", False, None), ("residual_dropout", 0.0, None), ("head_dim", 64, None),
        ("rope_scaling", checkpoints.LLAMA3_ROPE, "rope's llama3 has no place in GGUF of a seed_oss"),
    ],
    "DeepseekV3ForCausalLM": [
        ("n_routed_experts", None, "n_routed_experts is missing"), ("n_routed_experts", 11, "of 4 groups"),
        ("topk_group", 5, "of 5 of 4 groups"), ("topk_group", None, "of None of 4 groups"),
        ("n_group", None, "of 2 of None groups"), ("first_k_dense_replace", 4, "is 4, expected layers"),
        ("n_shared_experts", 0, "n_shared_experts is 0, expected layers"),
        ("rms_norm_eps", 1e-5, "expected 1e-06, by which"),
        ("num_experts_per_tok", 0, "num_experts_per_tok is 0"),
        ("rope_interleave", None, "rope_interleave is None"),
        ("rope_scaling", MSCALES | {"factor": 0.5}, "factor is 0.5"), ("model_type", "kimi_k2", "kimi_k2"),
        ("quantization_config", BLOCKS | {"activation_scheme": "static"}, "fp8 of blocks"),
        ("quantization_config", BLOCKS | {"weight_block_size": 128}, "fp8 of blocks"),
        ("num_experts_per_tok", 7, "7 of 12 experts, of 2 of 4 groups"), ("n_group", 1, "of 2 of 1 groups"),
        ("num_key_value_heads", 4, "num_key_value_heads is 4, expected 8, one for each head"),
        ("q_lora_rank", None, "q_lora_rank is None, expected a number: llama.cpp knows no other"),
        ("num_hidden_layers", 27, "q_lora_rank is 64, expected null"), ("head_dim", 48, None),
        ("qk_rope_head_dim", 15, "8 heads of 47 values"), ("v_head_dim", None, "v_head_dim is null"),
        ("rope_scaling", MSCALES | {"mscale": 0.7}, "mscale is 0.7 in rope_scaling, expected that of"),
        ("rope_scaling", MSCALES | {"mscale": None, "mscale_all_dim": None}, "mscale is None"),
        ("rope_scaling", MSCALES | {"attention_factor": 1.0}, "attention_factor is 1.0 in rope_scaling"),
        ("rope_scaling", MSCALES | {"type": "linear"}, "rope_type is linear, expected yarn or default"),
        ("rope_scaling", {"mscale": 1.0}, "rope_scaling has a mscale and no rope_type"),
        ("routed_scaling_factor", None, "routed_scaling_factor is null"), ("rope_scaling", None, None),
        ("quantization_config", BLOCKS | {"weight_block_size": None},
         "quantization_config is .*, expected none, or fp8 of blocks"),
        ("quantization_config", BLOCKS | {"fmt": "e5m2"}, "fp8 of blocks"),
        ("quantization_config", BLOCKS | {"weight_block_size": [0, 1]}, "fp8 of"),
        ("quantization_config", BLOCKS, None),
    ],
    "DeepseekV2ForCausalLM": [
        ("q_lora_rank", 32, "q_lora_rank is 32, expected null: llama.cpp knows no other"),
        ("num_hidden_layers", 5, "q_lora_rank is None, expected a number"),
        ("n_group", 8, "n_group is 8, expected 1"), ("topk_method", None, "topk_method is None"),
        ("topk_method", "group_limited_greedy", None),
        ("num_experts_per_tok", 4, None), ("scoring_func", "sigmoid", "scoring_func is sigmoid"),
    ],
    "GptOssForCausalLM": [
        ("rope_scaling", None, "rope_parameters and rope_scaling are missing, expected one: transformers"),
        ("rope_scaling", {"rope_type": "default"}, None),
        ("rope_scaling", families.GPT_OSS["rope_scaling"] | {"truncate": True}, None),
        ("quantization_config", {"quant_method": "fp8"}, "quant_method is fp8, expected mxfp4"),
        ("quantization_config", None, None),
        ("hidden_size", 272, "hidden_size is 272, expected a multiple of 32, a block of MXFP4"),
        ("layer_types", ["full_attention"] * 4, "layer_types says others than that of 2 layers"),
        ("sliding_window", None, "sliding_window is null"),
    ],
    "Qwen2ForCausalLM": [
        ("rope_scaling", families.YARN["rope_scaling"] | {"truncate": False}, "truncate is false"),
        ("quantization_config", {"quant_method": "mxfp4"}, "quantization_config is"),
    ],
    "Olmo2ForCausalLM": [("head_dim", 64, "head_dim is 64, expected 32")],
}  # fmt: skip


def test_its_own_numbers_are_read_or_refused(family, tmp_path):
    for key, value, reason in NUMBERS.get(family.architecture, ()):
        if reason is None:
            assert config(family, tmp_path, **{key: value})
            continue
        with pytest.raises(Refused, match=reason):
            config(family, tmp_path, **{key: value})


def test_the_documents_name_each_family(family):
    name = re.sub("For(CausalLM|ConditionalGeneration)$", "", family.architecture)
    for page in ("README.md", "docs/config.md"):
        assert name in (ROOT / page).read_text(), page
