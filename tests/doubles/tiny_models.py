"""Write tiny random checkpoints of any family that transformers knows.  Runs in envs/transformers.

    python tiny_models.py OUT TOKENIZER MODEL_TYPE... [--set JSON]

OUT/MODEL_TYPE each, with the tokenizer files of the folder TOKENIZER.  A JSON object on stdout: per model
type its architecture, or why none could be made.  JSON is more of the configuration.  Norms and biases are
noise: a norm of ones that is lost, or taken for another, changes nothing.
"""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

SPARE = 64  # rows of the embedding beyond the tokenizer's: some classes add tokens of their own
EXACT = ("gemma",)  # families whose converter cuts the embedding to the tokenizer
SIZES = {  # by the names that families give them, where they have them
    "hidden_size": 128, "n_embd": 128, "d_model": 128, "intermediate_size": 192, "ffn_hidden_size": 192,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "head_dim": 32, "global_head_dim": 32, "max_position_embeddings": 512, "n_positions": 512,
    "max_sequence_length": 512, "n_inner": 192,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "experts_per_token": 2, "moe_k": 2, "moe_topk": 2, "top_k_experts": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "expert_ffn_hidden_size": 64,
    "shared_intermediate_size": 64, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2,
    "topk_group": 1, "q_lora_rank": 48, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "sliding_window": 16, "attention_window": 16,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4,
    "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_ssm": 256,
    "mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1, "state_size": 16,
    "mamba_expand": 2, "expand": 2, "num_heads": 8, "time_step_rank": 8, "mamba_dt_rank": 8,
    "index_n_heads": 2, "index_head_dim": 128, "index_topk": 8,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1024, "laurel_rank": 8,
    "num_kv_shared_layers": 0, "altup_num_inputs": 2, "num_global_key_value_heads": 2,
    "query_pre_attn_scalar": 32, "block_ff_dim": 192, "conv_dim": 128, "num_dense_layers": 1,
}  # fmt: skip
ADDED = {  # tokens that a converter asks for by name
    ("glm", "sarvam", "solar"): (
        "[gMASK]", "<sop>", "<|endoftext|>", "<|user|>", "<|observation|>", "<eop>",
    ),
}  # fmt: skip
OWN: dict[str, dict] = {  # of a family, where its configuration asks for more
    "qwen3_next": {"full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "qwen3_moe": {"norm_topk_prob": True},
    "olmoe": {"num_key_value_heads": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4},
    "mamba": {"intermediate_size": 256},
    "falcon_mamba": {"intermediate_size": 256},
    "mamba2": {"num_heads": 8, "head_dim": 32},
    "gemma3_text": {"num_hidden_layers": 6},  # every sixth sees all, whatever config.json says
    "qwen3_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5],
                            "mrope_interleaved": True},
    },
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "hunyuan_v1_dense": {"eod_token_id": 1020},
    "hunyuan_v1_moe": {"eod_token_id": 1020},
    "gemma3n_text": {"altup_num_inputs": 4},
    "mistral": {"sliding_window": None},
    "phi": {"intermediate_size": 512},
    "deepseek_v2": {"n_group": None, "topk_group": None, "first_k_dense_replace": 1},
}  # fmt: skip

EYES = {  # of a vision_config, by the names that families give them
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "depth": 2,
    "num_attention_heads": 4, "num_heads": 4, "image_size": 112, "patch_size": 14,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
}  # fmt: skip
SHOWN = {"do_rescale": True, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PICTURES = {  # what a preprocessor_config.json says of a family's pictures
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "do_resize": True, "image_seq_length": 16,
               "size": {"height": 112, "width": 112}},
    "qwen3_vl": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2,
                 "temporal_patch_size": 2, "do_resize": True,
                 "size": {"shortest_edge": 3136, "longest_edge": 12845056}},
}  # fmt: skip
PICTURES |= dict.fromkeys(("qwen3_5", "qwen3_vl_moe", "qwen3_5_moe"), PICTURES["qwen3_vl"])
SEEING = {  # of such a configuration
    "gemma3": {"mm_tokens_per_image": 16},
    "qwen3_vl": {"image_token_id": 1030, "video_token_id": 1031, "vision_start_token_id": 1032,
                 "vision_end_token_id": 1033},
}  # fmt: skip
SEEING |= dict.fromkeys(("qwen3_5", "qwen3_vl_moe", "qwen3_5_moe"), SEEING["qwen3_vl"])

PUBLISHED = {  # what published files say and transformers does not write; None: what they do not say
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "qk_head_dim": None},
    "qwen3_moe": {"num_experts": 4, "num_local_experts": None, "head_dim": 32},
    "sarvam_mla": {"scoring_func": "sigmoid"},
}


NAMED = {
    "gemma3": ("vision_tower.", "vision_tower.vision_model.")
}  # tensors, as published files do


def rename(file: Path, before: str, after: str) -> None:
    """The names in a safetensors header that hold `before`."""
    with safe_open(file, "pt") as opened:
        found = {name.replace(before, after): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    save_file(found, file, {"format": "pt"})


def config_of(kind: str, tokens: int, ends: dict, more: dict):
    """A configuration of a few layers; the family's own numbers where they are not sizes."""
    config = AutoConfig.for_model(kind)
    inner = config.get_text_config()
    spare = 0 if kind.startswith(EXACT) else SPARE
    fresh = {"vocab_size": tokens + spare, **SIZES, **OWN.get(inner.model_type, {}), **more}
    known = inner.to_dict()  # some raise at an attribute that differs between layers
    said = {key: value for key, value in fresh.items() if key in known or _has(inner, key)}
    heads = known.get("num_attention_heads")
    grouped = known.get("num_key_value_heads") not in (None, heads)
    if "num_key_value_heads" in said and not grouped and "num_attention_heads" in said:
        said["num_key_value_heads"] = said["num_attention_heads"]  # as those that are published
    if "kv_lora_rank" in said:  # latent attention has no grouped heads
        said["num_key_value_heads"] = said["num_attention_heads"]
        if "head_dim" in said:
            said["head_dim"] = said["qk_rope_head_dim"]
    for key in ("sliding_window", "attention_window"):  # of one that has a window alone
        if said.get(key) and getattr(inner, key) is None and key not in more:
            del said[key]
    if "vocab_size_per_layer_input" in said:
        said["vocab_size_per_layer_input"] = said["vocab_size"]
    if "rope_parameters" in vars(inner) and inner.rope_parameters:
        said["rope_parameters"] = fresh.get("rope_parameters", inner.rope_parameters)
    # lists of one item per layer: the configuration makes them by itself
    lists = (
        "layer_types",
        "mlp_layer_types",
        "no_rope_layers",
        "layers_block_type",
        "mlp_only_layers",
        "per_layer_config",
    )
    before = {key: value for key, value in known.items() if key not in lists}
    for key in [key for key, value in before.items() if isinstance(value, list) and len(value) > 4]:
        del before[key]
    text = type(inner)(**{**before, **said, **ends})
    if inner is config:
        return text
    eyes, more = {}, SEEING.get(kind, {})
    if hasattr(config, "vision_config"):
        said = config.vision_config.to_dict()
        eyes = said | {key: value for key, value in EYES.items() if key in said}
        if "out_hidden_size" in eyes:
            eyes["out_hidden_size"] = text.hidden_size
        more = {**more, "vision_config": eyes}
    return type(config)(text_config=text.to_dict(), **more)


def _has(config, key: str) -> bool:
    try:
        return hasattr(config, key)
    except Exception:
        return False


def write(kind: str, out: Path, tokenizer: Path, more: dict) -> str:
    known = json.loads((tokenizer / "tokenizer.json").read_bytes())
    tokens = 1 + max(
        *known["model"]["vocab"].values(), *(one["id"] for one in known["added_tokens"])
    )
    said = json.loads((tokenizer / "generation_config.json").read_bytes())
    ends = {"bos_token_id": said["bos_token_id"], "eos_token_id": said["eos_token_id"][-1],
            "pad_token_id": None}  # fmt: skip
    torch.manual_seed(0)
    config = config_of(kind, tokens, ends, more)
    whole = config.get_text_config() is not config
    loader = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    model = loader.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.dim() == 1 and "A_log" not in name and "dt_bias" not in name:
                one.add_(torch.randn_like(one) * 0.1)
            elif one.dim() > 1:
                one.copy_(torch.randn_like(one) * one.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer_config.json", "generation_config.json", "tokenizer.model"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, out)
    if names := NAMED.get(kind):
        rename(out / "model.safetensors", *names)
    if more_said := PUBLISHED.get(kind):
        place = out / "config.json"
        fields = json.loads(place.read_bytes()) | more_said
        gone = [key for key, value in more_said.items() if value is None]
        place.write_text(json.dumps({key: fields[key] for key in fields if key not in gone}))
    if pictures := PICTURES.get(kind):
        (out / "preprocessor_config.json").write_text(json.dumps({**SHOWN, **pictures}))
    asked = next((words for kinds, words in ADDED.items() if kind.startswith(kinds)), ())
    plain = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    known["added_tokens"] += [
        {"id": tokens + n, "content": word, **plain} for n, word in enumerate(asked)
    ]
    (out / "tokenizer.json").write_text(json.dumps(known))
    return type(model).__name__


if __name__ == "__main__":
    words, more = sys.argv[1:], {}
    if "--set" in words:
        more = json.loads(words.pop())
        words.remove("--set")
    folder, source, *kinds = words
    found = {}
    for one in kinds:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                found[one] = {"architecture": write(one, Path(folder, one), Path(source), more)}
        except Exception as error:  # whatever a configuration of odd sizes runs into
            found[one] = {"why": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    print(json.dumps(found, indent=1))
