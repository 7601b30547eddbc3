"""Gemma 2: norms on both sides of attention and feed-forward, each second layer with a window, soft caps.

Source: transformers' modeling_gemma2.py, configuration_gemma2.py; llama.cpp's conversion/gemma.py of the
commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight
from ingot.model.families.llama import LLAMA

BETWEEN = ("post_attention_layernorm",)  # which is behind attention here, not before feed-forward
GELU = ("gelu_pytorch_tanh",)
GEMMA2 = replace(
    LLAMA,
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    gguf="gemma2",
    llama3_rope=False,
    layer={
        name: replace(one, heads="", bias="")
        for name, one in LLAMA.layer.items()
        if name not in BETWEEN
    }
    | {
        "post_attention_layernorm": Weight("post_attention_norm", ("hidden",)),
        "pre_feedforward_layernorm": Weight("ffn_norm", ("hidden",)),
        "post_feedforward_layernorm": Weight("post_ffw_norm", ("hidden",)),
    },
    gguf_keys=(
        "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
        "attention.key_length", "attention.value_length", "general.file_type",
        "attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window",
        "general.quantization_version",
    ),
    says_prefix_space=False,
    no_prefix_space=True,
    needs=("own_gguf", "norms_behind", "windows"),
    scales={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    sliding_every=2,
    wide_at=46,
    activation=GELU[0],
    norm_plus=1.0,
    root_embedding=True,
    neutral={
        "hidden_act": (None, *GELU),
        "hidden_activation": (None, *GELU),
        "use_bidirectional_attention": (None, False),
    },
    defaults={
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
        "head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True,
    },
    counts_kv_heads=False,  # transformers fills it with 4
    trtllm=None,
)  # fmt: skip
