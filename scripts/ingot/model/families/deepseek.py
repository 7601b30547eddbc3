"""DeepSeek V2-Lite, V3, V3.1 and R1, and what is built like them: latent attention, and shared experts.

Source: transformers' modeling_deepseek_v2.py, modeling_deepseek_v3.py and their configurations; llama.cpp's
conversion/deepseek.py and src/models/deepseek2.cpp of the commit in envs/llamacpp.  V2 in its full size
chooses groups of experts by their best one, libllama by their two best: refused.
"""

from dataclasses import replace

from ingot.model.families.family import Part, Weight
from ingot.model.families.llama import LLAMA

HEAD = ("plain", "value")  # the rows of one head of kv_b_proj
V3_SAYS = {  # as transformers takes where it says nothing
    "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8,
    "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
}  # fmt: skip
V2_SAYS = {
    **{key: V3_SAYS[key] for key in V3_SAYS if not key.startswith(("n_group", "topk_", "scoring"))},
    "topk_method": "greedy", "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0, "norm_topk_prob": False, "moe_intermediate_size": 1407,
}  # fmt: skip
V3 = replace(
    LLAMA,
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    gguf="deepseek2",
    llama3_rope=False,
    latent=True,
    router="sigmoid",
    layer={  # of those with experts in the order that llama.cpp's converter writes them
        "input_layernorm": Weight("attn_norm", ("hidden",)),
        "self_attn.q_proj": Weight("attn_q", ("q_whole", "hidden")),
        "self_attn.q_a_proj": Weight("attn_q_a", ("q_rank", "hidden")),
        "self_attn.q_a_layernorm": Weight("attn_q_a_norm", ("q_rank",)),
        "self_attn.q_b_proj": Weight("attn_q_b", ("qk", "q_rank")),
        "self_attn.kv_a_proj_with_mqa": Weight("attn_kv_a_mqa", ("kv_a", "hidden")),
        "self_attn.kv_a_layernorm": Weight("attn_kv_a_norm", ("kv_rank",)),
        "self_attn.o_proj": Weight("attn_output", ("hidden", "attended")),
        "post_attention_layernorm": Weight("ffn_norm", ("hidden",)),
        "mlp.gate_proj": Weight("ffn_gate", ("dense", "hidden")),
        "mlp.up_proj": Weight("ffn_up", ("dense", "hidden")),
        "mlp.down_proj": Weight("ffn_down", ("hidden", "dense")),
        "mlp.experts.{}.down_proj": Weight("ffn_down_exps", ("hidden", "expert")),
        "mlp.experts.{}.gate_proj": Weight("ffn_gate_exps", ("expert", "hidden")),
        "mlp.experts.{}.up_proj": Weight("ffn_up_exps", ("expert", "hidden")),
        "mlp.gate": Weight("ffn_gate_inp", ("experts", "hidden"), float32=True),
        "mlp.gate.e_score_correction_bias": Weight("exp_probs_b.bias", ("experts",), whole=True),
        "mlp.shared_experts.gate_proj": Weight("ffn_gate_shexp", ("shared", "hidden")),
        "mlp.shared_experts.up_proj": Weight("ffn_up_shexp", ("shared", "hidden")),
        "mlp.shared_experts.down_proj": Weight("ffn_down_shexp", ("hidden", "shared")),
    },
    parts=(
        ("self_attn.kv_b_proj", Part("attn_k_b", ("kv_rank", "plain"), HEAD, turned=True)),
        ("self_attn.kv_b_proj", Part("attn_v_b", ("value", "kv_rank"), HEAD, first=("plain",))),
    ),
    needs=("own_gguf", "experts", "latent"),
    experts="moe_intermediate_size",
    counts=("n_routed_experts",),
    neutral={
        "topk_method": (None, "noaux_tc"), "moe_layer_freq": (None, 1), "rope_interleave": (True,),
    },
    says={"scoring_func": "sigmoid"},
    defaults=V3_SAYS,
    gguf_keys=(
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "rope.scaling", "rope.freq_base", "attention.layer_norm_rms_epsilon",
        "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count",
        "expert_gating_func", "attention.key_length", "attention.value_length", "general.file_type",
        "leading_dense_block_count", "vocab_size", "attention.q_lora_rank", "attention.kv_lora_rank",
        "attention.key_length_mla", "attention.value_length_mla", "expert_feed_forward_length",
        "expert_shared_count", "expert_weights_scale", "expert_weights_norm", "rope.dimension_count",
        "rope.scaling.yarn_log_multiplier", "general.quantization_version",
    ),
    trtllm=None,
)  # fmt: skip
LENGTHS = ("attention.key_length", "attention.value_length")
KEYS = [key for key in V3.gguf_keys if key not in LENGTHS]
BEHIND = KEYS.index("attention.kv_lora_rank") + 1
V2 = replace(
    V3,
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    router="softmax",
    layer={name: one for name, one in V3.layer.items() if "correction" not in name},
    neutral={
        "topk_method": ("greedy", "group_limited_greedy"), "scoring_func": (None, "softmax"),
        "n_group": (None, 1), "topk_group": (None, 1), "moe_layer_freq": (None, 1),
    },
    says={"norm_topk_prob": False},  # whatever it says, transformers norms none
    defaults=V2_SAYS,
    # its converter writes them earlier where config.json says head_dim, as transformers' class of V3 does
    gguf_keys=(*KEYS[:BEHIND], *LENGTHS, *KEYS[BEHIND:]),
)  # fmt: skip
