"""gpt-oss 20B and 120B: sinks of attention, biases, and experts of MXFP4 in one tensor a layer.

Source: transformers' modeling_gpt_oss.py, configuration_gpt_oss.py; llama.cpp's conversion/gpt_oss.py and
src/models/openai-moe.cpp of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Stack, Weight
from ingot.model.families.llama import LLAMA

EXPERT = ("expert", "hidden")
SAYS = {  # as transformers takes where it says nothing
    "attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = replace(
    LLAMA,
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    gguf="gpt-oss",
    llama3_rope=False,
    layer={
        "input_layernorm": Weight("attn_norm", ("hidden",)),
        **{
            name: replace(one, heads="")
            for name, one in LLAMA.layer.items()
            if name.startswith("self_attn.")
        },
        "self_attn.sinks": Weight("attn_sinks.weight", ("heads",), whole=True),
        "post_attention_layernorm": Weight("post_attention_norm", ("hidden",)),
        "mlp.router": Weight("ffn_gate_inp", ("experts", "hidden"), float32=True),
        "mlp.router.bias": Weight("ffn_gate_inp.bias", ("experts",), whole=True),
    },
    stacks=(
        ("mlp.experts.gate_up_proj", Stack("ffn_gate_exps", EXPERT, first=0, step=2)),
        ("mlp.experts.gate_up_proj", Stack("ffn_up_exps", EXPERT, first=1, step=2)),
        ("mlp.experts.down_proj", Stack("ffn_down_exps", ("hidden", "expert"))),
    ),
    gguf_keys=(
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "rope.scaling", "rope.freq_base", "attention.layer_norm_rms_epsilon",
        "expert_count", "expert_used_count", "attention.key_length", "attention.value_length",
        "general.file_type", "attention.sliding_window", "expert_feed_forward_length",
        "general.quantization_version",
    ),
    says_prefix_space=False,
    needs=("own_gguf", "experts", "windows", "sinks"),
    experts="intermediate_size",
    sliding_every=2,
    always=("attention_bias",),
    says=SAYS,
    defaults={**SAYS, "sliding_window": 128},
    says_rope=True,
    rounds_yarn=True,
    default_theta=150000.0,
    default_head_dim=64,
    counts_kv_heads=False,  # transformers fills it with 8
    trtllm=None,
)  # fmt: skip
