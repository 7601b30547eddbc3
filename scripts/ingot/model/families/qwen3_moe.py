"""Qwen3's mixtures of experts, 30B-A3B, Coder and 235B-A22B: Qwen3's attention, and experts in each layer.

Source: transformers' modeling_qwen3_moe.py; llama.cpp's conversion/qwen.py of the commit in envs/llamacpp.
"""

from dataclasses import replace

from ingot.model.families.family import Weight
from ingot.model.families.qwen3 import QWEN3

EXPERTS = {  # in the order that llama.cpp's converter writes them
    "mlp.experts.{}.down_proj": Weight("ffn_down_exps", ("hidden", "expert")),
    "mlp.experts.{}.gate_proj": Weight("ffn_gate_exps", ("expert", "hidden")),
    "mlp.experts.{}.up_proj": Weight("ffn_up_exps", ("expert", "hidden")),
    "mlp.gate": Weight("ffn_gate_inp", ("experts", "hidden"), float32=True),
}
DENSE = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
QWEN3_MOE = replace(
    QWEN3,
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    gguf="qwen3moe",
    layer={name: one for name, one in QWEN3.layer.items() if name not in DENSE} | EXPERTS,
    needs=("own_gguf", "qk_norm", "experts"),
    experts="moe_intermediate_size",
    says={"norm_topk_prob": True},  # whatever it says, libllama norms them
    neutral={**QWEN3.neutral, "decoder_sparse_step": (None, 1), "mlp_only_layers": (None, [])},
    trtllm=None,
    default_head_dim=None,
)
