"""Qwen2, Qwen2.5, QwQ and what is built like them: Llama's layers with biases of q, k and v.

Source: transformers' modeling_qwen2.py; llama.cpp's conversion/qwen.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import without
from ingot.model.families.llama import LLAMA

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    gguf="qwen2",
    llama3_rope=False,
    layer={
        name: replace(one, heads="", bias="attention_bias" if name in QKV else "")
        for name, one in LLAMA.layer.items()
    },
    gguf_keys=without("vocab_size", "rope.dimension_count"),
    says_prefix_space=False,
    needs=("own_gguf", "qkv_bias"),
    always=("attention_bias",),
    trtllm={"qwen_type": "qwen2"},
    counts_kv_heads=False,  # transformers fills it with 32
    names_head_dim=False,
    neutral={"use_sliding_window": (None, False), "use_mrope": (None, False)},
)
