"""OLMo 2: norms behind attention and feed-forward instead of before, and over all heads of q and of k.

Source: transformers' modeling_olmo2.py; llama.cpp's conversion/olmo.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight, without
from ingot.model.families.llama import LLAMA

PLAIN = {
    name: replace(one, heads="", bias="")
    for name, one in LLAMA.layer.items()
    if not name.endswith("norm")
}
OLMO2 = replace(
    LLAMA,
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    gguf="olmo2",
    llama3_rope=False,
    layer={
        **PLAIN,
        "self_attn.q_norm": Weight("attn_q_norm", ("q",)),
        "self_attn.k_norm": Weight("attn_k_norm", ("kv",)),
        "post_attention_layernorm": Weight("post_attention_norm", ("hidden",)),
        "post_feedforward_layernorm": Weight("post_ffw_norm", ("hidden",)),
    },
    gguf_keys=without("vocab_size", "rope.dimension_count"),
    says_prefix_space=False,
    needs=("own_gguf", "norms_behind"),
    names_head_dim=False,
    divides_heads=True,
    trtllm=None,
)
