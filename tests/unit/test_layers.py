"""Layers that are no Llama's: what published config.json files say of experts, windows and rope."""

import contextlib
import json
import random

import pytest

import checkpoints
import families
from ingot.base.refused import Refused
from ingot.model.config import read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ALL
from ingot.model.gpu_layout import VLLM, gpu_layout
from ingot.model.known_fields import Beyond
from ingot.model.layers import Experts, Sliding
from ingot.model.rope import LinearRope
from ingot.model.specs import parameters, specs_of

GEMMA3_4B = {  # but for its part for images, all that it says
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
    "mm_tokens_per_image": 256, "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}  # fmt: skip
WIDE = {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
        "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168}  # fmt: skip
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def run(said):
        (tmp_path / "config.json").write_text(json.dumps(said))
        return read_config(tmp_path / "config.json", can=ALL)

    return run


def test_a_gemma_that_leaves_most_to_transformers_is_read_whole(read):
    found = read(GEMMA3_4B)
    assert (found.vocab, found.context, found.heads, found.kv_heads) == (262208, 131072, 8, 4)
    assert found.sliding == Sliding(1024, 6, 10000.0) and found.tied
    assert (found.rope_theta, found.rope) == (1e6, LinearRope(8.0))
    assert found.sliding.layers(13) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]
    assert found.needs == ("own_gguf", "qk_norm", "norms_behind", "windows", "linear")
    # 4.30 billion with its part for images
    assert 3.88e9 < parameters(found) < 3.89e9


def test_scores_of_the_widest_gemma_are_divided_by_another_root(read):
    inner = GEMMA3_4B["text_config"] | WIDE
    assert read({**GEMMA3_4B, "text_config": inner}).head_dim == 128
    for other in ({"query_pre_attn_scalar": 128}, {"num_hidden_layers": 61}):
        with pytest.raises(Beyond, match=r"query_pre_attn_scalar is .*, expected 1"):
            read({**GEMMA3_4B, "text_config": {**inner, **other}})


@pytest.mark.parametrize("said, reason", [
    ({"sliding_window_pattern": 4}, "layer_types says others than that of 6 layers the last sees all"),
    ({"layer_types": ["full_attention"] * 34}, "layer_types says others"),
    ({"rope_local_base_freq": -1}, "rope_local_base_freq is -1"),
    ({"sliding_window": 0}, "sliding_window is 0"),
    ({"hidden_activation": "silu"}, "hidden_activation is silu, expected gelu_pytorch_tanh"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
    ({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
     r"rope_parameters.sliding_attention is .*, expected a base alone"),
    ({"rope_parameters": {"full_attention": {}, "sliding_attention": [1]}}, "expected a base alone"),
    ({"sliding_window": None}, "sliding_window is null, expected a number"),
    ({"rope_local_base_freq": 5.0, "rope_parameters": {
        "full_attention": {}, "sliding_attention": {"rope_theta": 6.0}}}, "expected one value"),
])  # fmt: skip
def test_what_libllama_does_not_know_of_windows_is_refused(said, reason, read):
    inner = {**GEMMA3_4B["text_config"], "rope_scaling": None, **said}
    with pytest.raises(Refused, match=reason):
        read({**GEMMA3_4B, "text_config": inner})


def test_a_part_for_text_that_is_none_is_refused(read):
    for inner in (7, None):
        with pytest.raises(Refused, match="text_config is"):
            read({**GEMMA3_4B, "text_config": inner})
    gone = {key: one for key, one in GEMMA3_4B.items() if key != "text_config"}
    with pytest.raises(Refused, match="text_config is missing"):
        read(gone)


def test_experts_are_counted_and_stacked_by_their_numbers(read):
    found = read(QWEN3_30B)
    assert found.experts == Experts(128, 8, 768)
    assert parameters(found) == 30_532_122_624
    down = next(one for one in specs_of(found, "f16") if one.name == "blk.0.ffn_down_exps.weight")
    assert (down.shape, down.source_shape) == ((128, 2048, 768), (2048, 768))
    assert down.sources[11] == "model.layers.0.mlp.experts.11.down_proj.weight"
    router = next(one for one in specs_of(found, "f16") if one.name == "blk.0.ffn_gate_inp.weight")
    assert router.type.name == "F32"


@pytest.mark.parametrize("said", [QWEN3_30B, GEMMA3_4B], ids=["experts", "norms behind"])
def test_a_gpu_holds_all_its_weights_and_a_rank_its_share(said, read):
    found = read(said)
    one, four = (gpu_layout(found, tp, 1, VLLM, 80 << 30, 4096) for tp in (1, 4))
    assert one.weights == pytest.approx(2 * parameters(found), rel=1e-3)
    assert four.weights == pytest.approx(one.weights / 4, rel=2e-3), "but for routers and norms"


SHORT = {  # what transformers 4 leaves out as it is the default, and transformers takes then
    "SmolLM3": (("tie_word_embeddings", "rope_theta"), {"tied": True, "rope_theta": 2e6}),
    "Mixtral": (("rope_theta",), {"rope_theta": 1e6, "tied": False}),
    "Gemma 2": (("attn_logit_softcapping", "head_dim", "sliding_window"), {"head_dim": 256, "tied": True}),
    "Gemma 3": (("rope_theta", "rope_local_base_freq"), {"rope_theta": 1e6, "tied": True}),
    "Granite": (("residual_multiplier",), {"tied": False}),
    "Seed-OSS": (("attention_bias", "attention_out_bias", "mlp_bias", "head_dim", "rope_theta"),
                 {"attention_bias": True, "mlp_bias": False, "head_dim": 128, "rope_theta": 1e4}),
    "Phi-3": (("original_max_position_embeddings", "partial_rotary_factor", "num_key_value_heads"),
              {"original_context": 4096, "rope_dim": 32, "kv_heads": 8, "window": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_what_config_json_leaves_out_is_what_transformers_takes(name, read):
    gone, wanted = SHORT[name]
    said = checkpoints.llama_config(
        **families.SHAPES[name] | ({"query_pre_attn_scalar": 256} if name == "Gemma 2" else {})
    )
    found = read({key: one for key, one in said.items() if key not in gone and one is not None})
    assert {key: getattr(found, key) for key in wanted} == wanted


def test_a_default_is_no_second_word_beside_what_is_said(read):
    found = read(families.GEMMA3_5 | {"rope_parameters": {
        "full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4},
    }} | {key: 64 for key in ("hidden_size", "intermediate_size", "num_attention_heads")}
      | {"num_key_value_heads": 64, "max_position_embeddings": 64})  # fmt: skip
    assert (found.rope_theta, found.sliding.theta) == (5e5, 2e4)


@pytest.mark.parametrize("name, said, reason", [
    ("Gemma 2", {"attn_logit_softcapping": None}, "attn_logit_softcapping is null"),
    ("Gemma 2", {"rope_theta": 5e5}, "rope's base 500000 has no place in GGUF of a gemma2"),
    ("Gemma 2", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope's linear has no place"),
    ("OLMo 2", {"rope_scaling": checkpoints.LLAMA3_ROPE}, "rope's llama3 has no place in GGUF of a olmo2"),
    ("SmolLM3", {"rope_scaling": checkpoints.LLAMA3_ROPE}, "rope's llama3 has no place"),
])  # fmt: skip
def test_what_gguf_of_the_family_cannot_say_is_left_to_others(name, said, reason, read):
    config = checkpoints.llama_config(**families.SHAPES[name] | said)
    with pytest.raises(Beyond, match=reason):
        read(config)


def test_a_model_that_sees_is_tied_as_the_whole_is(read):
    for outer, inner, tied in ((False, True, False), (True, False, True), (None, False, True)):
        said = {**GEMMA3_4B, "tie_word_embeddings": outer}
        said["text_config"] = {**said["text_config"], "tie_word_embeddings": inner}
        assert read({key: one for key, one in said.items() if one is not None}).tied is tied


def test_more_experts_than_can_be_listed_are_refused(read):
    with pytest.raises(
        Refused, match="num_experts is 5000, expected a whole number from 0 to 4096"
    ):
        read({**QWEN3_30B, "num_experts": 5000})


def test_what_it_was_trained_on_may_be_said_of_its_rope_alone(read):
    said = families.PHI3 | {"original_max_position_embeddings": None}
    said["rope_scaling"] = families.LONG | {"original_max_position_embeddings": 512}
    found = read(
        {key: one for key, one in checkpoints.llama_config(**said).items() if one is not None}
    )
    assert found.original_context == found.rope.original_context == 512


ODD = (
    None, 0, -1, 5, 10**30, 1e-40, float("nan"), "x", "", [], [1], ["full_attention"], [{}], {}, True,
    {"full_attention": 5}, {"full_attention": {}, "sliding_attention": []},
    {"full_attention": {}, "sliding_attention": {"rope_theta": []}},
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*families.SEES, "Qwen3-MoE", "Mixtral", "SmolLM3", "Granite", "Gemma 2"]
)
def test_whatever_stands_in_a_field_it_is_read_or_refused(name, tmp_path):
    """A sample, another each time; all of it was tried once, 9,864 files."""
    chosen, path = random.Random(), tmp_path / "config.json"
    whole = checkpoints.llama_config(**families.SHAPES[name])
    whole = families.seeing(whole) if name in families.SEES else whole
    family = FAMILIES[whole["architectures"][0]]
    keys = sorted({*whole, *whole.get("text_config", {}), *family.reads, *family.neutral})
    for _ in range(150):
        said = json.loads(json.dumps(whole))
        inner = said["text_config"] if family.inner and chosen.random() < 0.8 else said
        inner[chosen.choice(keys)] = chosen.choice(ODD)
        path.write_text(json.dumps(said))
        with contextlib.suppress(Refused):
            specs_of(read_config(path, can=ALL), "f16")
