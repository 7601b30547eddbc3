"""A GGUF file as a server runs it: libllama in its own precision.  Runs in envs/llamacpp.

The class that it is made from computes in float32, for the sake of comparing.
"""

import os
from ctypes import c_bool, c_char, c_int32, c_void_p
from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.gguf import libllama
from ingot.formats.gguf.structures import Batch

AT_ONCE = 512  # tokens of a prompt, fewer than libllama takes by itself
LONGEST = 256  # bytes of a token's text


class Served(libllama.Llama):
    """The model of `gguf`; `begin` it before anything is read."""

    def __init__(self, gguf: Path):
        self.gguf, self.lib, self.error = gguf, libllama.library(), None
        self.lib.llama_batch_get_one.restype = Batch
        self.lib.llama_vocab_is_eog.restype = self.lib.llama_vocab_is_control.restype = c_bool
        settings = self.lib.llama_model_default_params()
        settings.load_mode, settings.n_gpu_layers = libllama.MMAP, libllama.LAYERS
        self.model = c_void_p(self.lib.llama_model_load_from_file(os.fsencode(gguf), settings))
        if not self.model:
            raise Refused(f"{gguf}: libllama cannot load it, expected a whole model")
        self.vocab = c_void_p(self.lib.llama_model_get_vocab(self.model))
        adds = self.lib.llama_vocab_get_add_bos(self.vocab)
        self.start = [self.lib.llama_vocab_bos(self.vocab)] if adds else []
        self.tokens = self.lib.llama_vocab_n_tokens(self.vocab)
        self.trained_context = self.lib.llama_model_n_ctx_train(self.model)
        self.has_template = bool(self.lib.llama_model_chat_template(self.model, None))

    def begin(self, context: int, threads: int) -> None:
        """Make room for `context` tokens."""
        settings = self.lib.llama_context_default_params()
        settings.n_ctx, settings.n_threads, settings.n_threads_batch = context, threads, threads
        self.context = c_void_p(self.lib.llama_init_from_model(self.model, settings))
        if not self.context:
            raise Refused(
                f"{self.gguf}: libllama cannot run it, expected a context of {context} tokens"
            )

    def read(self, ids: list[int]) -> None:
        """Behind what was read; the logits of the last token alone are computed."""
        for start in range(0, len(ids), AT_ONCE):
            part = ids[start : start + AT_ONCE]
            kept = (c_int32 * len(part))(*part)  # as long as the batch, which points to it
            batch = self.lib.llama_batch_get_one(kept, c_int32(len(part)))
            if status := self.lib.llama_decode(self.context, batch):
                raise Refused(
                    f"{self.gguf}: llama_decode gave status {status} of {len(part)} tokens"
                )
        self.lib.llama_get_logits_ith(self.context, c_int32(-1))  # waits until it is done

    def likeliest(self) -> int:
        """The token behind what was read."""
        found = self.lib.llama_get_logits_ith(self.context, c_int32(-1))
        return int(np.ctypeslib.as_array(found, (self.tokens,)).argmax())

    def is_special(self, token: int) -> bool:
        return self.lib.llama_vocab_is_control(self.vocab, c_int32(token))

    def ends(self, token: int) -> bool:
        """Does it end an answer?"""
        return self.lib.llama_vocab_is_eog(self.vocab, c_int32(token))

    def bytes_of(self, token: int) -> bytes:
        """What it adds to a text: perhaps a part of a character; of a special one nothing."""
        found = (c_char * LONGEST)()
        count = self.lib.llama_token_to_piece(
            self.vocab, c_int32(token), found, c_int32(LONGEST), c_int32(0), c_bool(False)
        )
        return found.raw[: max(count, 0)]
