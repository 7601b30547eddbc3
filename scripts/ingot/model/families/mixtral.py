"""Mixtral 8x7B and 8x22B: Mistral's attention, and experts in each layer.

Source: transformers' modeling_mixtral.py; llama.cpp's conversion/llama.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight, without
from ingot.model.families.mistral import MISTRAL
from ingot.model.families.qwen3_moe import DENSE

EXPERTS = {  # in the order that llama.cpp's converter writes them
    "block_sparse_moe.experts.{}.w1": Weight("ffn_gate_exps", ("expert", "hidden")),
    "block_sparse_moe.experts.{}.w2": Weight("ffn_down_exps", ("hidden", "expert")),
    "block_sparse_moe.experts.{}.w3": Weight("ffn_up_exps", ("expert", "hidden")),
    "block_sparse_moe.gate": Weight("ffn_gate_inp", ("experts", "hidden"), float32=True),
}
MIXTRAL = replace(
    MISTRAL,
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    layer={name: one for name, one in MISTRAL.layer.items() if name not in DENSE} | EXPERTS,
    gguf_keys=without("expert_feed_forward_length"),
    needs=("experts",),
    experts="intermediate_size",
    default_window=None,
    default_theta=1e6,
    names_head_dim=False,
    trtllm={},
)
