"""The flags of trtllm-build 1.2.1: what it accepts, and what became of older spellings.

Source: commands/build.py and plugin/plugin.py of TensorRT-LLM, which NVIDIA removed after 1.2.1.  A
wrong flag costs minutes on a GPU to find out; here it costs none.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.tensorrt.gpus import TRTLLM

SWITCH = ("enable", "disable")
PLUGIN = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
FP8 = ("fp8", "disable")
NUMBERS = (
    "max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens",
    "opt_num_tokens", "max_encoder_input_len", "max_prompt_embedding_table_size",
    "tokens_per_block", "max_draft_len", "max_lora_rank",
)  # fmt: skip
WORDS = {
    "kv_cache_type": ("paged", "continuous", "disabled"),
    "profiling_verbosity": ("layer_names_only", "detailed", "none"),
    "logits_dtype": ("float16", "float32"),
    "gemm_plugin": (*PLUGIN[:-1], "fp8", "nvfp4", "disable"),
    "gemm_allreduce_plugin": ("float16", "bfloat16", "disable"),
    **dict.fromkeys(
        ("gpt_attention_plugin", "bert_attention_plugin", "nccl_plugin", "lora_plugin",
         "moe_plugin", "mamba_conv1d_plugin", "fp8_rowwise_gemm_plugin"), PLUGIN),
    **dict.fromkeys(
        ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"), FP8),
    **dict.fromkeys(
        ("context_fmha", "use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding",
         "bert_context_fmha_fp32_acc", "norm_quant_fusion", "reduce_fusion", "user_buffer",
         "fuse_fp4_quant", "multiple_profiles", "paged_state", "use_fused_mlp",
         "dora_plugin"), SWITCH),
}  # fmt: skip
BARE = (
    "strip_plan", "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output",
    "monitor_memory", "gather_context_logits", "gather_generation_logits",
    "gather_all_token_logits",
)  # fmt: skip
GONE = {  # of 0.9.0, and refused by 1.2.1 -> the reason
    "use_custom_all_reduce": "the runtime chooses the all-reduce since 0.12; leave it out",
    "strongly_typed": "every engine is strongly typed since 0.11; leave it out",
    "weight_only_precision": "quantised when the checkpoint is made; name a variant such as fp8",
    "builder_opt": "gone since 0.14; leave it out",
    "enable_xqa": "always on since 0.12; leave it out",
    "lookup_plugin": "gone since 0.12; leave it out",
    "attention_qk_half_accumulation": "gone since 0.11; leave it out",
    "use_context_fmha_for_generation": "gone since 0.11; leave it out",
    "auto_parallel": "gone; name tensor and pipeline parallel sizes",
    "gpus_per_node": "gone with auto_parallel; leave it out",
    "cluster_key": "gone with auto_parallel; leave it out",
    "streamingllm": "1.2.1 refuses it: its KV cache has no attention sinks; leave it out",
}
RUNTIME = {  # flags of 0.9.0 that the runtime is told since -> its parameter
    "context_fmha_fp32_acc": "enable_context_fmha_fp32_acc",
    "multi_block_mode": "multi_block_mode",
}
ALIASES = {
    "max_decoder_seq_len": "max_seq_len",
    "max_multimodal_len": "max_prompt_embedding_table_size",
}
OPTIONAL = ("max_prompt", "max_draft", "max_lora")  # numbers that may be 0
OURS = {  # said elsewhere
    "checkpoint_dir": "the pipeline names the checkpoint",
    "model_dir": "the pipeline names the checkpoint",
    "output_dir": "the target's name says where it goes",
    "model_config": "the checkpoint says what the model is",
    "build_config": "name its settings one by one, so that each is in the key",
    "output_timing_cache": "kept outside of the engine; it decides nothing",
    "input_timing_cache": "a file that no key would show affects which kernels are chosen",
    "dtype": "set the model's dtype",
    "workers": "Snakemake's: --set-resources build_engine:gpu=N",
    "dry_run": "snakemake -n shows what would run",
    "log_level": "the log has all",
    "visualize_network": "it draws, and decides nothing",
    **dict.fromkeys(
        ("lora_dir", "lora_ckpt_source", "lora_target_modules"),
        "files that no key would show; adapters are not built in here",
    ),
    "speculative_decoding_mode": "draft models are not built here",
    "model_cls_file": "a file that no key would show",
    "model_cls_name": "a class that no key would show",
    "pp_reduce_scatter": "1.2.1 takes it for Mixtral only",
}


DEFAULTS = {  # the guide's settings, as 1.2.1 takes them
    "max_batch_size": "256",
    "max_input_len": "2048",
    "max_seq_len": "3072",
    "max_num_tokens": "8192",
    "gpt_attention_plugin": "auto",
    "gemm_plugin": "auto",
    "remove_input_padding": "enable",
    "kv_cache_type": "paged",
    "context_fmha": "enable",
    "use_paged_context_fmha": "enable",
}


@dataclass
class Build:
    """What to tell trtllm-build, what to tell the runtime instead, and what was translated."""

    flags: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """Sorted, so that the order in the catalogue does not matter."""
        pairs = sorted(self.flags.items())
        return [f"--{name}={value}" if value else f"--{name}" for name, value in pairs]


def complete(settings: dict[str, Any], dtype: str, tp: int, pp: int) -> Build:
    """`settings` translated, and the defaults of what they leave open."""
    build = translated(settings, dtype, tp, pp)
    build.flags = {**DEFAULTS, **build.flags}
    _together(build.flags)
    tokens, longest = (int(build.flags[name]) for name in ("max_num_tokens", "max_input_len"))
    if tokens < longest:
        build.notes.append(
            f"max_num_tokens {tokens} is below max_input_len {longest}: longer prompts are refused, "
            "unless the runtime's enable_chunked_context is true"
        )
    return build


def translated(settings: dict[str, Any], dtype: str, tp: int = 1, pp: int = 1) -> Build:
    """`settings`, in the spelling of 0.9.0 or of 1.2.1, as 1.2.1 takes them; Refused says why not.

    `dtype` is the checkpoint's, in TensorRT-LLM's word.
    """
    given, build = _words(settings), Build()
    _parallel(given, tp, pp)
    _lengths(given, build)
    _cache(given, build)
    for name, word in given.items():
        if name in RUNTIME:
            _one_of(name, word, SWITCH)
            build.runtime[RUNTIME[name]] = str(word == "enable").lower()
            build.notes.append(f"{name}: {word} -> the runtime's {RUNTIME[name]}")
        elif name in GONE:
            raise Refused(f"{name}: {GONE[name]}")
        elif name in OURS:
            raise Refused(f"{name}: {OURS[name]}")
        elif name in NUMBERS:
            build.flags[name] = str(_number(name, word))
        elif name in BARE:
            _one_of(name, word, SWITCH)
            build.flags |= {name: ""} if word == "enable" else {}
        elif name in WORDS:
            _one_of(name, word.lower(), WORDS[name])
            build.flags[name] = word.lower()
        else:
            near = difflib.get_close_matches(name, [*NUMBERS, *WORDS, *BARE], n=1)
            nearest = f"; nearest: {near[0]}" if near else ""
            raise Refused(f"{name}: no flag of trtllm-build {TRTLLM} that can be set here{nearest}")
    _plugins(build.flags, dtype)
    _together(build.flags)
    return build


def _words(settings: dict[str, Any]) -> dict[str, str]:
    """Names and values in one spelling."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        plain = name.lstrip("-").replace("-", "_")
        plain = ALIASES.get(plain, plain)
        if not isinstance(value, bool | int | str):
            raise Refused(f"{name} is {value!r}, expected a word, a number, true or false")
        if plain in found:
            raise Refused(f"{plain} is given twice; keep one")
        found[plain] = ("disable", "enable")[value] if isinstance(value, bool) else str(value)
    return found


def _number(name: str, word: str) -> int:
    least = 0 if name.startswith(OPTIONAL) else 1
    if not (word.isascii() and word.isdigit() and int(word) >= least):
        raise Refused(f"{name} is {word}, expected a whole number from {least}")
    return int(word)


def _parallel(given: dict[str, str], tp: int, pp: int) -> None:
    """Sizes come from the checkpoint since 0.12: taken when they say the same."""
    for name, size in (("tp_size", tp), ("pp_size", pp), ("world_size", tp * pp)):
        if name in given and given.pop(name) != str(size):
            raise Refused(
                f"{name}: since 0.12 the target's name sets the size, here {size}; leave it out"
            )


def _lengths(given: dict[str, str], build: Build) -> None:
    if "max_output_len" not in given:
        return
    if "max_seq_len" in given:
        raise Refused("max_output_len and max_seq_len are one setting; keep the second")
    output = _number("max_output_len", given.pop("max_output_len"))
    longest = output + _number("max_input_len", given.get("max_input_len", "1024"))
    given["max_seq_len"] = str(longest)
    build.notes.append(f"max_output_len: {output} -> max_seq_len: {longest}")


def _cache(given: dict[str, str], build: Build) -> None:
    if "paged_kv_cache" not in given:
        return
    if "kv_cache_type" in given:
        raise Refused("paged_kv_cache and kv_cache_type are one setting; keep the second")
    old = given.pop("paged_kv_cache")
    _one_of("paged_kv_cache", old, SWITCH)
    given["kv_cache_type"] = "paged" if old == "enable" else "continuous"
    build.notes.append(f"paged_kv_cache: {old} -> kv_cache_type: {given['kv_cache_type']}")


def _plugins(flags: dict[str, str], dtype: str) -> None:
    for name in ("gpt_attention_plugin", "gemm_plugin"):
        word = flags.get(name)
        if word in ("float16", "bfloat16", "float32") and word != dtype:
            raise Refused(f"{name} is {word}, but the checkpoint is {dtype}; say auto")


def _one_of(name: str, word: str, legal: Iterable[str]) -> None:
    if word not in legal:
        raise Refused(f"{name} is {word}, expected one of {', '.join(legal)}")


def _together(flags: dict[str, str]) -> None:
    """What trtllm-build finds out late, or clips with a warning that nobody reads."""
    number = {name: int(flags[name]) for name in NUMBERS if name in flags}
    if flags.get("multiple_profiles") == "enable" and "opt_num_tokens" in flags:
        raise Refused("multiple_profiles and opt_num_tokens cannot be combined; drop one")
    longest = number.get("max_seq_len")
    if longest and number.get("max_input_len", 0) > longest:
        raise Refused(
            f"max_input_len is {number['max_input_len']}, more than max_seq_len {longest}"
        )
    tokens = number.get("max_num_tokens")
    if tokens and number.get("opt_num_tokens", 0) > tokens:
        raise Refused(
            f"opt_num_tokens is {number['opt_num_tokens']}, more than max_num_tokens {tokens}"
        )
    if tokens and tokens < number.get("max_batch_size", 0):
        raise Refused(
            f"max_num_tokens is {tokens}, less than max_batch_size {number['max_batch_size']}: "
            "one token of each request of a step must fit"
        )
    paged = flags.get("use_paged_context_fmha") == "enable"
    if paged and flags.get("context_fmha") == "disable":
        raise Refused("use_paged_context_fmha: enable needs context_fmha: enable")
    if paged and flags.get("kv_cache_type", "paged") != "paged":
        raise Refused("use_paged_context_fmha: enable needs kv_cache_type: paged")
    for name in ("gather_context_logits", "gather_all_token_logits"):
        if name in flags and number.get("max_draft_len"):
            raise Refused(f"{name} cannot be combined with max_draft_len; drop one")
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if flags.get(name) == "fp8" and flags.get("use_fused_mlp") == "disable":
            raise Refused(f"{name}: fp8 needs use_fused_mlp: enable")
