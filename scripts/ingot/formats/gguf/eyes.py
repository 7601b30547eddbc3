"""A picture before a text, by llama.cpp's own library for images: what an mmproj file is for."""

import ctypes
import os
from ctypes import c_char_p, c_int, c_int32, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.gguf.libllama import Llama

MARKER = "<__media__>"  # of mtmd: where the picture stands
WHY = {
    -1: "the text cannot be cut at the picture",
    -2: "the picture is too many tokens",
    -3: "it cannot be read",
}


@dataclass(frozen=True)
class Seen:
    """Greedy tokens after a picture and a text; `ids` are -1 where the picture stands."""

    ids: list[int]
    tokens: list[int]
    logits: np.ndarray  # float32 [tokens, vocabulary]: what each came from


class Eyes:
    """The part for images of `mmproj`, beside the text model that it belongs to."""

    def __init__(self, mmproj: Path, model: Llama, context: int):
        self.mmproj, self.model, self.room = mmproj, model, context
        name = c_char_p(os.fsencode(mmproj))
        self.place = c_void_p(model.lib.ingot_eyes(name, model.model, c_int(model.threads)))
        if not self.place:
            raise Refused(
                f"{mmproj}: llama.cpp's library for images cannot load it beside {model.gguf}, expected "
                "the part of the same model; its log says why"
            )

    def __enter__(self) -> "Eyes":
        if not self.model.lib.ingot_eyes_see(self.place):
            raise Refused(
                f"{self.mmproj}: no part for images, expected one: sounds are not verified"
            )
        return self

    def __exit__(self, *error) -> None:
        self.model.lib.ingot_eyes_close(self.place)

    def see(self, text: str, picture: np.ndarray, count: int) -> Seen:
        """`count` greedy tokens after `text`, where MARKER is `picture`, uint8 [height, width, 3]."""
        lib, context = self.model.lib, self.model.context
        ids, end = (c_int32 * self.room)(), c_int32()
        height, width = picture.shape[:2]
        pixels = np.ascontiguousarray(picture)
        self.model.clear()
        found = lib.ingot_see(
            self.place, context, c_char_p(text.encode()), c_void_p(pixels.ctypes.data),
            c_int(width), c_int(height), c_int(self.room), ids, c_int(self.room), ctypes.byref(end),
        )  # fmt: skip
        if found < 0:
            raise Refused(
                f"{self.mmproj}: {WHY[found]}, expected at most {self.room} tokens; its log says why"
            )
        last = lib.llama_get_logits_ith(context, c_int32(-1))
        rows = [np.ctypeslib.as_array(last, (self.model.tokens,)).copy()]
        while len(rows) < count:
            token = int(rows[-1].argmax())
            rows.append(self.model.logits([token], end.value + len(rows) - 1)[0])
        logits = np.stack(rows)
        return Seen(list(ids[:found]), logits.argmax(-1).tolist(), logits)
