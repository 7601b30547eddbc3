"""Granite 3's dense models: Llama's layers, and four numbers that scale what they add and give.

Source: transformers' modeling_granite.py; llama.cpp's conversion/granite.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import without
from ingot.model.families.llama import LLAMA, PLAIN

GRANITE = replace(
    LLAMA,
    architecture="GraniteForCausalLM",
    model_type="granite",
    gguf="granite",
    layer=PLAIN,
    gguf_keys=without("attention.key_length", "attention.value_length"),
    needs=("own_gguf", "scales"),
    scales={  # in the order that llama.cpp's converter writes them
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    defaults=dict.fromkeys(
        ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
        1.0,
    ),
    divides_heads=True,
    trtllm=None,
)
