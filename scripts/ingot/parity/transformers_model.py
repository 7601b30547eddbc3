"""A checkpoint in transformers, float32, configured by our own reading of its config.json.

transformers' reading ignores what later versions write (rope_parameters), and fills in a window that a
Mistral does not have: a right program would be refused, and a wrong one pass.
"""

from pathlib import Path

from ingot.architecture.config import (
    ALL,
    LinearRope,
    Llama3Rope,
    ModelConfig,
    YarnRope,
    read_config,
)
from ingot.checkpoint.files import Checkpoint
from ingot.refused import Refused


def load(checkpoint: Checkpoint):
    """The model, for inference."""
    import torch
    from transformers import AutoModelForCausalLM

    with checkpoint.as_folder() as folder:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            config=our_reading(checkpoint["config.json"]),
            torch_dtype=torch.float32,
            use_safetensors=True,
        ).eval()


def our_reading(path: Path):
    """config.json as we read it, in the words of this transformers."""
    from transformers import AutoConfig, LlamaConfig, MistralConfig

    ours = read_config(path, takes=ALL)
    words = {
        "vocab_size": ours.vocab, "hidden_size": ours.hidden, "num_hidden_layers": ours.layers,
        "intermediate_size": ours.ffn, "num_attention_heads": ours.heads,
        "num_key_value_heads": ours.kv_heads, "head_dim": ours.head_dim,
        "max_position_embeddings": original(ours), "rms_norm_eps": ours.rms_eps,
        "rope_theta": ours.rope_theta, "rope_scaling": scaling(ours.rope), "tie_word_embeddings": ours.tied,
        "hidden_act": "silu",
    }  # fmt: skip
    if ours.architecture == "MistralForCausalLM":
        found = MistralConfig(**words, sliding_window=None)
    else:
        found = LlamaConfig(**words, attention_bias=ours.attention_bias, mlp_bias=ours.mlp_bias)
    differs = [name for name, value in words.items() if getattr(found, name) != value]
    if differs:
        raise Refused(
            f"{path}: {differs[0]}: transformers makes it another; expected {words[differs[0]]}"
        )
    theirs = AutoConfig.from_pretrained(path)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(found, name, getattr(theirs, name, None))
    return found


def original(config: ModelConfig) -> int:
    """The context; with YaRN the one before it, from which transformers 4 takes it: where the scaling
    names one it computes a factor of its own."""
    return config.rope.original_context if isinstance(config.rope, YarnRope) else config.context


def scaling(rope: Llama3Rope | LinearRope | YarnRope | None) -> dict | None:
    """A rope scaling as transformers 4 spells it."""
    if rope is None:
        return None
    if isinstance(rope, LinearRope):
        return {"rope_type": "linear", "factor": rope.factor}
    if isinstance(rope, YarnRope):
        found = {
            "rope_type": "yarn",
            "factor": rope.factor,
            "attention_factor": rope.attention_factor,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
        }
        return {key: value for key, value in found.items() if value is not None}
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_context,
    }
