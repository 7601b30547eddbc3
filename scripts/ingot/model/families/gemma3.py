"""Gemma 3: Gemma 2's layers with norms of each head of q and k, five windows to a layer that sees all.

Its part for text; where it also sees, the rest of the checkpoint is M.mmproj.gguf's.
Source: transformers' modeling_gemma3.py, configuration_gemma3.py; llama.cpp's conversion/gemma.py of the
commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight, without
from ingot.model.families.gemma2 import GEMMA2

ORDER = without("vocab_size", "rope.dimension_count")
AT, END = ORDER.index("rope.freq_base") + 1, ORDER.index("general.file_type") + 1
GEMMA3 = replace(
    GEMMA2,
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    gguf="gemma3",
    layer={
        **GEMMA2.layer,
        "self_attn.q_norm": Weight("attn_q_norm", ("head",)),
        "self_attn.k_norm": Weight("attn_k_norm", ("head",)),
    },
    gguf_keys=(
        *ORDER[:AT], "rope.freq_base_swa", *ORDER[AT:END], "attention.sliding_window", *ORDER[END:],
    ),
    needs=("own_gguf", "qk_norm", "norms_behind", "windows"),
    scales={},
    sliding_every=6,
    wide_at=62,
    default_theta=1e6,
    defaults={
        "vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
)  # fmt: skip
GEMMA3_SEEING = replace(
    GEMMA3,
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    inner="text_config",
)
