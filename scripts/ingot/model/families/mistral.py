"""Mistral 7B, Nemo and what is built like them: Llama's layers without biases, and a sliding window.

Source: transformers' modeling_mistral.py, configuration_mistral.py.
"""

from dataclasses import replace

from ingot.model.families.llama import LLAMA, PLAIN

MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model_type="mistral",
    layer=PLAIN,
    ends_at_window=True,
    default_window=4096,
    counts_kv_heads=False,  # transformers fills it with 8: too easily wrong to guess
)
