"""libllama by ctypes: a GGUF file loaded, asked for logits, tokens and chats.  Runs in envs/llamacpp.

What crosses into it is in structures.py.
"""

import ctypes
import functools
import json
import os
import sys
import time
from ctypes import (
    POINTER,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.entry import give_up
from ingot.base.refused import Refused
from ingot.formats.gguf.structures import (
    Batch,
    ContextParameters,
    ModelParameters,
    QuantizeParameters,
    Tensor,
)
from ingot.model.tensors.dtypes import TensorType

LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
ABORTED = ctypes.CFUNCTYPE(None, c_char_p)  # ggml_abort_callback_t
EVALUATED = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)  # ggml_backend_sched_eval_callback
FILE = Path(sys.prefix) / "llama.cpp/bin/libllama.so"
LAYERS = 0  # on a GPU; of bench/gpu_llama.py alone, which names another FILE
THREADS = min(len(os.sched_getaffinity(0)), 8)  # beyond, memory is the limit
# bytes of a model that one thread runs as fast: ggml's threads wait for each other in loops, so that three
# small models at once on two cores took 26 s of CPU time where they take 4
SMALL = 64 << 20
F32 = 0  # enum ggml_type
MMAP, NO_FLASH = 1, 0  # enum llama_load_mode, enum llama_flash_attn_type
DEBUG, INFO, CONTINUED = 1, 2, 5  # enum ggml_log_level


POINTERS = {  # functions that give one, which ctypes would cut to an int
    "llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "llama_get_memory",
    "llama_model_chat_template", "llama_vocab_get_text", "llama_adapter_lora_init", "ingot_eyes",
}  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    """libllama with ggml; what it says goes to stdout, the log."""
    found = ctypes.CDLL(str(FILE))
    for name in POINTERS:
        getattr(found, name).restype = c_void_p
    found.llama_model_default_params.restype = ModelParameters
    found.llama_context_default_params.restype = ContextParameters
    found.llama_model_quantize_default_params.restype = QuantizeParameters
    found.llama_model_quantize.restype = c_uint32
    found.llama_model_size.restype = c_uint64
    found.llama_get_logits.restype = found.llama_get_logits_ith.restype = POINTER(c_float)
    found.llama_vocab_get_add_bos.restype = found.ingot_eyes_see.restype = c_bool
    for name in ("llama_version", "ggml_op_name", "ingot_render"):
        getattr(found, name).restype = c_char_p
    found.ggml_quantize_chunk.restype = c_size_t
    found.ggml_quantize_chunk.argtypes = (
        c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p,
    )  # fmt: skip
    found.ggml_quantize_requires_imatrix.restype = c_bool
    listen(found, to_stdout)
    found.ggml_set_abort_callback(GAVE_UP)
    os.environ["TZ"] = "UTC"  # a template's date, as strftime_now has it
    time.tzset()
    found.llama_backend_init()
    return found


def listen(found: Any, hear) -> None:
    """Every line of libllama's log but those for its own makers goes to `hear`."""
    level = INFO

    def heard(said: int, text: bytes, _data) -> None:
        nonlocal level
        level = level if said == CONTINUED else said
        if level != DEBUG:
            hear(text.decode(errors="replace"))

    found.hear = LOG(heard)  # kept alive as long as the library
    found.llama_log_set(found.hear, None)
    found.mtmd_helper_log_set(found.hear, None)


def gave_up(message: bytes) -> None:
    """An assertion of its own that does not hold would end the process by a signal, without a word."""
    place, _, words = message.decode(errors="replace").rpartition("llama.cpp/")[2].partition(": ")
    give_up(
        f"llama.cpp stops ({words:.200}, {place}), expected a model that it runs; its log says more"
    )


GAVE_UP = ABORTED(gave_up)  # kept alive as long as the library


def to_stdout(text: str) -> None:
    sys.stdout.write(text)


def version() -> str:
    """llama.cpp's own word for its commit."""
    return library().llama_version().decode()


def quantised(values: np.ndarray, kind: TensorType, columns: np.ndarray | None) -> np.ndarray:
    """Rows of float32 as the bytes of `kind`, by ggml; the GIL is free meanwhile.

    `columns` are the weights, float32 [columns], that an importance matrix gives to the errors.
    """
    if kind.name == "F32":
        return values.reshape(-1).view(np.uint8)
    out = np.empty(kind.nbytes(values.shape), np.uint8)
    if columns is not None and len(columns) != values.shape[1]:
        raise Refused(
            f"the importance matrix has {len(columns)} columns of a tensor, expected {values.shape[1]}"
        )
    if columns is None and library().ggml_quantize_requires_imatrix(kind.number):
        raise Refused(
            f"{kind.name}: needs an importance matrix, expected one with this tensor; name it"
        )
    values = np.ascontiguousarray(values)
    library().ggml_quantize_chunk(
        kind.number, values.ctypes.data, out.ctypes.data, 0, *values.shape,
        columns.ctypes.data if columns is not None else None,
    )  # fmt: skip
    return out


class Llama:
    """A GGUF file, or the first of a split set, as libllama reads it."""

    def __init__(self, gguf: Path, context: int, watch=None, lora: Path | None = None):
        """`context` tokens at once; `watch(tensor, ask)` sees every node of the graph; with an adapter."""
        self.gguf, self.lib = gguf, library()
        self.error: BaseException | None = None  # of `watch`: ctypes lets none through
        parameters = self.lib.llama_model_default_params()
        parameters.load_mode, parameters.n_gpu_layers = MMAP, LAYERS
        parameters.check_tensors = True
        # weights stay in the file's pages: no second copy of them
        parameters.use_extra_bufts = False
        self.model = c_void_p(self.lib.llama_model_load_from_file(os.fsencode(gguf), parameters))
        if not self.model:
            raise Refused(
                f"{gguf}: libllama cannot load it, expected a whole model; its log says why"
            )
        self.threads = THREADS if self.lib.llama_model_size(self.model) > SMALL else 1
        self.vocab = c_void_p(self.lib.llama_model_get_vocab(self.model))
        self.tokens = self.lib.llama_vocab_n_tokens(self.vocab)
        self.trained_context = self.lib.llama_model_n_ctx_train(self.model)
        adds = self.lib.llama_vocab_get_add_bos(self.vocab)
        self.start = [self.lib.llama_vocab_bos(self.vocab)] if adds else []
        parameters = self.lib.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = context
        parameters.n_threads = parameters.n_threads_batch = self.threads
        # float32 throughout, so that what differs is the weights
        parameters.type_k = parameters.type_v = F32
        parameters.flash_attn_type = NO_FLASH
        parameters.no_perf = True
        if watch:
            self.watch = EVALUATED(lambda tensor, ask, _data: self._watched(watch, tensor, ask))
            parameters.cb_eval = ctypes.cast(self.watch, c_void_p)
        self.context = c_void_p(self.lib.llama_init_from_model(self.model, parameters))
        if not self.context:
            raise Refused(f"{gguf}: libllama cannot run it, expected a context of {context} tokens")
        if lora:
            self._apply(lora)

    def _apply(self, lora: Path) -> None:
        found = self.lib.llama_adapter_lora_init(self.model, os.fsencode(lora))
        one, scales = (c_void_p * 1)(found), (c_float * 1)(1.0)
        if not found or self.lib.llama_set_adapters_lora(self.context, one, c_size_t(1), scales):
            raise Refused(
                f"{lora}: libllama cannot apply it, expected an adapter of {self.gguf}; its log says why"
            )

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *error) -> None:
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def _watched(self, watch, tensor: int, ask: bool) -> bool:
        try:
            return self.error is None and watch(cast(tensor), ask)
        except BaseException as error:  # raised again by logits
            self.error = error
            return False

    def clear(self) -> None:
        """Forget what was read."""
        self.lib.llama_memory_clear(c_void_p(self.lib.llama_get_memory(self.context)), c_bool(True))

    def logits(self, ids: list[int], start: int = 0) -> np.ndarray:
        """Float32 [len(ids), vocabulary]: after each of `ids`, from `start` on; 0 empties the cache."""
        count = len(ids)
        if not start:
            self.clear()
        zero = c_int32(0)
        one = ctypes.pointer(zero)
        batch = Batch(
            count,
            (c_int32 * count)(*ids),
            None,
            (c_int32 * count)(*range(start, start + count)),
            (c_int32 * count)(*[1] * count),
            (POINTER(c_int32) * count)(*[one] * count),
            (ctypes.c_int8 * count)(*[1] * count),
        )
        status = self.lib.llama_decode(self.context, batch)
        if self.error:
            raise self.error
        if status:
            raise Refused(f"{self.gguf}: llama_decode gave status {status} of {count} tokens")
        found = self.lib.llama_get_logits(self.context)
        return np.ctypeslib.as_array(found, (count, self.tokens)).copy()

    def ids(self, text: str, alone: bool = False) -> list[int]:
        """The tokens of `text`, special ones by their names; with those that the model adds, or `alone`."""
        data = text.encode()
        room = len(data) + 8
        found = (c_int32 * room)()
        count = self.lib.llama_tokenize(
            self.vocab, data, len(data), found, room, c_bool(not alone), c_bool(True)
        )
        if count < 0:
            raise Refused(f"{self.gguf}: llama_tokenize gave {count} of {text!r}")
        return list(found[:count])

    def text_of(self, token: int) -> str:
        """What the vocabulary says of it; nothing for -1."""
        if token < 0:
            return ""
        return ctypes.string_at(self.lib.llama_vocab_get_text(self.vocab, token)).decode()

    def chat(self, messages: list[dict[str, str]], now: int) -> str:
        """A dialogue and an answer's opening, by the file's template and llama.cpp's own engine.

        `now` are seconds of 1970, for a template that says the date.
        """
        template = self.lib.llama_model_chat_template(self.model, None)
        if not template:
            raise Refused(f"{self.gguf}: tokenizer.chat_template is missing")
        known = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": self.text_of(self.lib.llama_vocab_bos(self.vocab)),
            "eos_token": self.text_of(self.lib.llama_vocab_eos(self.vocab)),
        }
        failed = c_int(0)
        source = json.dumps(known).encode()
        said = self.lib.ingot_render(
            ctypes.string_at(template), source, c_int64(now), ctypes.byref(failed)
        ).decode()
        if failed:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            reason = lines[0] if lines else "it says no reason"
            raise Refused(f"{self.gguf}: llama.cpp cannot render its chat template: {reason}")
        return said


def operation(tensor: Tensor) -> str:
    """The name of what a node of the graph does."""
    return library().ggml_op_name(tensor.op).decode()


def rows(tensor: Tensor) -> np.ndarray:
    """A float32 tensor's values [rows, columns], copied."""
    columns, count, sheets = tensor.ne[0], tensor.ne[1], tensor.ne[2] * tensor.ne[3]
    size = tensor.nb[3] * tensor.ne[3]
    raw = np.frombuffer((ctypes.c_char * size).from_address(tensor.data), np.uint8)
    shape, strides = (tensor.ne[3], tensor.ne[2], count, columns), tuple(reversed(tensor.nb))
    found = np.lib.stride_tricks.as_strided(raw.view(np.float32), shape, strides)
    return found.reshape(sheets * count, columns).copy()


def cast(tensor: int):
    return ctypes.cast(tensor, POINTER(Tensor)).contents
