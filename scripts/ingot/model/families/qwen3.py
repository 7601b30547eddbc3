"""Qwen3's dense models: Qwen2's layers without biases, and with a norm of each head of q and of k.

Source: transformers' modeling_qwen3.py; llama.cpp's conversion/qwen.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight
from ingot.model.families.qwen2 import QWEN2

NORMS = {  # each behind the projection that it norms
    "self_attn.q_proj": ("self_attn.q_norm", Weight("attn_q_norm", ("head",))),
    "self_attn.k_proj": ("self_attn.k_norm", Weight("attn_k_norm", ("head",))),
}
LAYER: dict[str, Weight] = {}
for name, one in QWEN2.layer.items():
    LAYER[name] = replace(one, bias="")
    LAYER.update([NORMS[name]] if name in NORMS else [])
QWEN3 = replace(
    QWEN2,
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    gguf="qwen3",
    layer=LAYER,
    needs=("own_gguf", "qk_norm"),
    always=(),
    trtllm={"qwen_type": "qwen3"},
    default_head_dim=128,  # whatever hidden size and heads are
    names_head_dim=True,
)
