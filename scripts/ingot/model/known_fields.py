"""Every field of a config.json that we know: what would be other arithmetic, and what has no effect.

What is honoured is read by config.py; a field that is nowhere is said there, and left out.
"""

from pathlib import Path

from ingot.base.refused import Refused
from ingot.model.families.family import Family


class Beyond(Refused):
    """Arithmetic that no table of ours has: an upstream tool may."""


# Below model_type: fields of other families, which transformers' classes of ours do not read.
NEUTRAL: dict[str, tuple] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (None, 1.0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": (None, 1.0),
    "clip_qkv": (None,),
    "use_qk_norm": (None, False),
    "qk_norm": (None, False),
    "no_rope_layers": (None, []),
    "num_local_experts": (None, 0, 1),
    "num_experts": (None, 0, 1),
    "position_embedding_type": (None, "rope", "absolute"),
    "is_encoder_decoder": (None, False),
    "pruned_heads": (None, {}),
    "add_cross_attention": (None, False),
}
NEUTRAL_ITEMS = {"layer_types": "full_attention"}  # lists, of this item only
WITHOUT_EFFECT = (  # sampling, training, names, and what the tokenizer says
    "_name_or_path", "attention_dropout", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "encoder_no_repeat_ngram_size",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "initializer_range", "is_decoder", "label2id", "length_penalty",
    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits",
    "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache", "use_sliding_window", "max_window_layers", "embd_pdrop", "resid_pdrop", "aux_loss_alpha",
    "seq_aux", "ep_size", "residual_dropout",
)  # fmt: skip
NAMES = (*NEUTRAL, *NEUTRAL_ITEMS, *WITHOUT_EFFECT)


def stop_on_other_arithmetic(path: Path, config: dict, family: Family) -> None:
    """Refuse what would be other arithmetic than the family's, which may honour some of NEUTRAL itself."""
    others = {key: value for key, value in NEUTRAL.items() if key not in family.reads}
    for key, neutral in {**others, **family.neutral}.items():
        if key in config and config[key] not in neutral:
            expected = next((word for word in neutral if word or word is False), "none")
            raise Beyond(
                f"{path}: {key} is {config[key]!s:.60}, expected {expected}; it would be left out"
            )
    for key, item in NEUTRAL_ITEMS.items():
        if key in family.reads:
            continue
        found = config.get(key) or []
        if not isinstance(found, list) or any(one != item for one in found):
            raise Beyond(
                f"{path}: {key} is {config[key]}, expected {item} only; it would be left out"
            )
    for key, value in family.says.items():
        if config.get(key) != value:
            found = config.get(key, "missing")
            raise Beyond(
                f"{path}: {key} is {found!s:.60}, expected {value}: llama.cpp knows no other {family.gguf}"
            )
