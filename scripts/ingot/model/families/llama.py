"""Llama 2, 3, 3.1, 3.2, 3.3, and what is built like them.

Source: transformers' modeling_llama.py; llama.cpp's conversion/llama.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Family, Weight

LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    gguf="llama",
    trtllm={},
    llama3_rope=True,
    layer={
        "input_layernorm": Weight("attn_norm", ("hidden",)),
        "self_attn.q_proj": Weight("attn_q", ("q", "hidden"), "heads", "attention_bias"),
        "self_attn.k_proj": Weight("attn_k", ("kv", "hidden"), "kv_heads", "attention_bias"),
        "self_attn.v_proj": Weight("attn_v", ("kv", "hidden"), bias="attention_bias"),
        "self_attn.o_proj": Weight("attn_output", ("hidden", "q"), bias="attention_bias"),
        "post_attention_layernorm": Weight("ffn_norm", ("hidden",)),
        "mlp.gate_proj": Weight("ffn_gate", ("ffn", "hidden"), bias="mlp_bias"),
        "mlp.up_proj": Weight("ffn_up", ("ffn", "hidden"), bias="mlp_bias"),
        "mlp.down_proj": Weight("ffn_down", ("hidden", "ffn"), bias="mlp_bias"),
    },
)
# its layers, without biases
PLAIN = {name: replace(one, bias="") for name, one in LLAMA.layer.items()}
