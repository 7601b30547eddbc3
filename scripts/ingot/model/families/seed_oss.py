"""Seed-OSS: Llama's layers with biases of q, k and v, where attention_bias does not say false.

Source: transformers' modeling_seed_oss.py, configuration_seed_oss.py; llama.cpp's conversion/olmo.py of the
commit in envs/llamacpp.  libllama has no place for biases of o (attention_out_bias) or of MLPs.
"""

from dataclasses import replace

from ingot.model.families.qwen2 import QWEN2

NAMED = {"post_attention_layernorm": "post_attention_norm"}  # others as Llama's
SEED_OSS = replace(
    QWEN2,
    architecture="SeedOssForCausalLM",
    model_type="seed_oss",
    gguf="seed_oss",
    layer={name: replace(one, gguf=NAMED.get(name, one.gguf)) for name, one in QWEN2.layer.items()},
    always=(),
    defaults={"attention_bias": True, "head_dim": 128},
    names_head_dim=True,
    neutral={"attention_out_bias": (None, False)},
    trtllm=None,
)
