"""Phi-3, Phi-3.5 and Phi-4: Llama's layers, with q, k and v as one weight, and gate and up as another.

Source: transformers' modeling_phi3.py, configuration_phi3.py; llama.cpp's conversion/phi.py of the commit
in envs/llamacpp.  libllama knows no window of it.
"""

from dataclasses import replace

from ingot.model.families.family import Weight
from ingot.model.families.mistral import MISTRAL

PHI3 = replace(
    MISTRAL,
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    gguf="phi3",
    layer={
        "input_layernorm": Weight("attn_norm", ("hidden",)),
        "self_attn.qkv_proj": Weight("attn_qkv", ("qkv", "hidden")),
        "self_attn.o_proj": Weight("attn_output", ("hidden", "q")),
        "post_attention_layernorm": Weight("ffn_norm", ("hidden",)),
        "mlp.gate_up_proj": Weight("ffn_up", ("gate_up", "hidden")),
        "mlp.down_proj": Weight("ffn_down", ("hidden", "ffn")),
    },
    needs=("own_gguf", "joined"),
    default_window=None,
    counts_kv_heads=True,
    gguf_keys=(
        "context_length", "rope.scaling.original_context_length", "embedding_length",
        "feed_forward_length", "block_count", "attention.head_count", "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "general.file_type",
        "attention.sliding_window", "general.quantization_version",
    ),
    divides_heads=True,
    llama3_rope=False,
    long_rope=4096,
    turns_part=True,
    says_prefix_space=False,
    plain_added=True,
    trtllm=None,
)  # fmt: skip
