"""SmolLM3: Llama's layers, of which each fourth has no rope.

Source: transformers' modeling_smollm3.py; llama.cpp's conversion/llama.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.llama import LLAMA, PLAIN

SMOLLM3 = replace(
    LLAMA,
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    gguf="smollm3",
    llama3_rope=False,
    layer=PLAIN,
    needs=("own_gguf", "rope_skips"),
    rope_skips=4,  # libllama knows no other
    neutral={"use_sliding_window": (None, False)},
    counts_kv_heads=False,  # transformers fills it with 4
    names_head_dim=False,
    default_theta=2e6,
    defaults={"tie_word_embeddings": True},
    trtllm=None,
)
