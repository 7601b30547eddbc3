"""The models of a Triton repository for a TensorRT-LLM engine: tensors, wiring, parameters.

Source: triton_backend/all_models of TensorRT-LLM 1.2.1 (text generation; what its templates say of
images, prompt tables and LoRA is left out), and inflight_batcher_llm's model_instance_state.cc for the
parameters.  One table each: the ensemble, its members and the BLS model cannot disagree.
"""

from dataclasses import dataclass

PREPROCESSING, ENGINE, POSTPROCESSING = "preprocessing", "tensorrt_llm", "postprocessing"
ENSEMBLE, BLS = "ensemble", "tensorrt_llm_bls"
ENGINE_BACKEND = "tensorrtllm"
BACKENDS = ("engine", "llmapi", "onnx")  # of the catalogue: what serves the model
ONNX_DEFAULTS = {"max_batch_size": 8, "requests": 4}  # that are computed at once
MODELS = (ENSEMBLE, PREPROCESSING, POSTPROCESSING, ENGINE, BLS)


@dataclass(frozen=True)
class Tensor:
    """`dims` without the batch; `scalar` are reshaped to none, as the C++ backend expects."""

    name: str
    type: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    scalar: bool = False
    ragged: bool = False


def optional(name: str, kind: str, *dims: int) -> Tensor:
    return Tensor(name, kind, dims or (1,), optional=True)


TEXT, LENGTH = Tensor("text_input", "STRING"), Tensor("max_tokens", "INT32")
WORDS = (
    optional("bad_words", "STRING", -1),
    optional("stop_words", "STRING", -1),
    optional("embedding_bias_words", "STRING", -1),
    optional("embedding_bias_weights", "FP32", -1),
    optional("end_id", "INT32"),
    optional("pad_id", "INT32"),
)
SAMPLING = {  # of a request -> of the engine
    "top_k": ("runtime_top_k", "INT32"),
    "top_p": ("runtime_top_p", "FP32"),
    "temperature": ("temperature", "FP32"),
    "length_penalty": ("len_penalty", "FP32"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "min_tokens": ("min_tokens", "INT32"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "seed": ("seed", "UINT64"),
    "beam_width": ("beam_width", "INT32"),
    "return_log_probs": ("return_log_probs", "BOOL"),
    "return_context_logits": ("return_context_logits", "BOOL"),
    "return_generation_logits": ("return_generation_logits", "BOOL"),
    "stream": ("streaming", "BOOL"),
}
ASKED = tuple(optional(name, kind) for name, (_, kind) in SAMPLING.items())
NUMBERS = (
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
    Tensor("context_logits", "FP32", (-1, -1)),
    Tensor("generation_logits", "FP32", (-1, -1, -1)),
)
ANSWER = (Tensor("text_output", "STRING", (-1,)), *NUMBERS)
PREPROCESSING_INPUTS = {  # of preprocessing -> of a request
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
}
PREPROCESSING_OUTPUTS = {  # of preprocessing -> of the engine
    "INPUT_ID": ("input_ids", "INT32", (-1,)),
    "REQUEST_INPUT_LEN": ("input_lengths", "INT32", (1,)),
    "REQUEST_OUTPUT_LEN": ("request_output_len", "INT32", (-1,)),
    "BAD_WORDS_IDS": ("bad_words_list", "INT32", (2, -1)),
    "STOP_WORDS_IDS": ("stop_words_list", "INT32", (2, -1)),
    "EMBEDDING_BIAS": ("embedding_bias", "FP32", (-1,)),
    "OUT_END_ID": ("end_id", "INT32", (1,)),
    "OUT_PAD_ID": ("pad_id", "INT32", (1,)),
}
TOKENS = (Tensor("output_ids", "INT32", (-1, -1)), Tensor("sequence_length", "INT32", (-1,)))
POSTPROCESSING_INPUTS = {"TOKENS_BATCH": "output_ids", "SEQUENCE_LENGTH": "sequence_length"}

INPUTS = {
    ENSEMBLE: (TEXT, LENGTH, *WORDS, *ASKED),
    BLS: (TEXT, LENGTH, *WORDS, *ASKED),
    PREPROCESSING: (
        Tensor("QUERY", "STRING"),
        Tensor("REQUEST_OUTPUT_LEN", "INT32"),
        optional("BAD_WORDS_DICT", "STRING", -1),
        optional("STOP_WORDS_DICT", "STRING", -1),
        optional("EMBEDDING_BIAS_WORDS", "STRING", -1),
        optional("EMBEDDING_BIAS_WEIGHTS", "FP32", -1),
        optional("END_ID", "INT32"),
        optional("PAD_ID", "INT32"),
    ),
    ENGINE: (
        Tensor("input_ids", "INT32", (-1,), ragged=True),
        Tensor("input_lengths", "INT32", scalar=True),
        Tensor("request_output_len", "INT32", scalar=True),
        Tensor("end_id", "INT32", optional=True, scalar=True),
        Tensor("pad_id", "INT32", optional=True, scalar=True),
        Tensor("bad_words_list", "INT32", (2, -1), optional=True, ragged=True),
        Tensor("stop_words_list", "INT32", (2, -1), optional=True, ragged=True),
        Tensor("embedding_bias", "FP32", (-1,), optional=True, ragged=True),
        *(
            Tensor(name, kind, optional=True, scalar=True)
            for name, kind in SAMPLING.values()
        ),
        Tensor("exclude_input_in_output", "BOOL", optional=True, scalar=True),
        Tensor("stop", "BOOL", optional=True, scalar=True),
    ),
    POSTPROCESSING: (
        Tensor("TOKENS_BATCH", "INT32", (-1, -1)),
        Tensor("SEQUENCE_LENGTH", "INT32", (-1,)),
    ),
}  # fmt: skip
OUTPUTS = {
    ENSEMBLE: ANSWER,
    BLS: ANSWER,
    PREPROCESSING: tuple(
        Tensor(name, kind, dims) for name, (_, kind, dims) in PREPROCESSING_OUTPUTS.items()
    ),
    ENGINE: (*TOKENS, *NUMBERS),
    POSTPROCESSING: (Tensor("OUTPUT", "STRING", (-1,)),),
}

# The guide's settings, in the words of 1.2.1.  The C++ backend stops without the first and the last
# three; an empty text switches the feature off.
DEFAULTS = {
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": "0.9",
    "max_beam_width": "1",
    "exclude_input_in_output": "true",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "tokenizer_dir": "",
    "guided_decoding_backend": "",
    "xgrammar_tokenizer_info_path": "",
}
SWITCH = ("true", "false")
WORDS_OF = {  # parameter -> the words that it takes
    "gpt_model_type": ("V1", "v1", "inflight_batching", "inflight_fused_batching"),
    "batch_scheduler_policy": ("max_utilization", "guaranteed_no_evict"),
    "decoding_mode": ("top_k", "top_p", "top_k_top_p", "beam_search"),
    "FORCE_CPU_ONLY_INPUT_TENSORS": ("yes", "no"),
    "guided_decoding_backend": ("", "xgrammar"),
    **dict.fromkeys(
        ("exclude_input_in_output", "enable_kv_cache_reuse", "normalize_log_probs",
         "enable_chunked_context", "enable_context_fmha_fp32_acc", "multi_block_mode",
         "kv_cache_onboard_blocks", "cuda_graph_mode"), SWITCH),
}  # fmt: skip
FRACTIONS = ("kv_cache_free_gpu_mem_fraction", "gpu_weights_percent")  # above 0, up to 1
COUNTS = (
    "max_beam_width", "max_tokens_in_paged_kv_cache", "kv_cache_host_memory_bytes",
    "sink_token_length", "cancellation_check_period_ms", "stats_check_period_ms",
    "iter_stats_max_iterations", "request_stats_max_iterations", "cuda_graph_cache_size",
)  # fmt: skip
TEXTS = ("gpt_model_path", "tokenizer_dir", "xgrammar_tokenizer_info_path", "gpu_device_ids",
         "max_attention_window_size", "executor_worker_path")  # fmt: skip
QUEUE = ("max_queue_delay_microseconds", "max_queue_size")  # of dynamic_batching; not parameters


LLM_OURS = (  # arguments of LLM(...) that the target's name says, or of backend `engine`
    "model", "backend", "tensor_parallel_size", "pipeline_parallel_size", "tokenizer", *DEFAULTS,
)  # fmt: skip


def words(runtime: dict) -> dict[str, str]:
    """The catalogue's values as the backend reads them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in runtime.items()
    }


def why_not(backend: str, runtime: dict) -> str | None:
    """What is wrong with trtllm.runtime, in one clause; or None."""
    if backend == "engine":
        reasons = (why_not_value(name, value) for name, value in words(runtime).items())
        return next(filter(None, reasons), None)
    if backend == "onnx":
        for name, value in runtime.items():
            if name not in ONNX_DEFAULTS:
                return f"{name} is not set for backend onnx, expected one of {', '.join(ONNX_DEFAULTS)}"
            if type(value) is not int or value < 1:
                return f"{name} is {value!r}, expected a whole number from 1"
        return None
    batch, decoupled = runtime.get("max_batch_size", 0), runtime.get("decoupled", True)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
        return f"max_batch_size is {batch!r}, expected a whole number"
    if not isinstance(decoupled, bool):
        return f"decoupled is {decoupled!r}, expected true or false"
    for name, value in runtime.items():
        if name in LLM_OURS:
            return f"{name} is not set here: the target's name sets it, or it is for backend engine only"
        if "${" in str(value):
            return f"{name} is {value}, a placeholder that was never filled in"
    return None


def why_not_value(name: str, value: str) -> str | None:
    """What is wrong with a parameter of tensorrt_llm, in one clause; or None."""
    if "${" in value:
        return f"{name} is {value}, a placeholder that was never filled in"
    if name in WORDS_OF and value not in WORDS_OF[name]:
        legal = ", ".join(word or "nothing" for word in WORDS_OF[name])
        return f"{name} is {value!r}, expected one of {legal}"
    if name in FRACTIONS and not (_number(value) and 0 < float(value) <= 1):
        return f"{name} is {value!r}, expected a fraction above 0, up to 1"
    if name in (*COUNTS, *QUEUE) and not value.isdigit():
        return f"{name} is {value!r}, expected a whole number"
    if name not in (*WORDS_OF, *FRACTIONS, *COUNTS, *TEXTS, *QUEUE):
        return f"{name} is no parameter of the tensorrt_llm model that this version knows"
    return None


def _number(value: str) -> bool:
    try:
        return float(value) == float(value)
    except ValueError:
        return False
