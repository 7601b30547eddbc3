"""Let llama.cpp's library for images see a picture by an mmproj file, and answer.  Runs in envs/llamacpp.

What verify_mmproj.py compares with transformers: the picture, the tokens as the library puts them around
it, and greedy tokens with their logits, by the float32 file of the text part.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.gguf.eyes import MARKER, Eyes
from ingot.formats.gguf.libllama import Llama
from ingot.parity import verification
from ingot.parity.in_libllama import opened

SIZE = "clip.vision.image_size"  # pixels of a side
USUAL, MOST = 448, 1024  # where any size is taken: a multiple of the patches that there are
CONTEXT = 4096  # tokens
STEPS = 24
TEXT = f"{MARKER}\nWhat is in this picture, and what colours does it have?"


def see_images(
    mmproj: Annotated[Path, "the part for images"],
    gguf: Annotated[Path, "the float32 file of the text part"],
    seen: Annotated[Path, "the .npz to write"],
) -> None:
    fields = opened(mmproj).fields
    if SIZE not in fields:
        raise Refused(f"{mmproj}: {SIZE} is missing, expected the part of a model that sees")
    native = int(fields[SIZE].contents())
    picture = drawn(native if native <= MOST else USUAL)
    with (
        stderr_to_log(f"{mmproj}: asking about a picture"),
        Llama(gguf, CONTEXT) as model,
        Eyes(mmproj, model, CONTEXT) as eyes,
    ):
        found = eyes.see(TEXT, picture, STEPS)
    with replacing(seen) as partial, partial.open("wb") as file:
        np.savez(
            file, mmproj=verification.digest(mmproj), picture=picture, ids=found.ids,
            tokens=found.tokens, logits=found.logits,
        )  # fmt: skip


def drawn(side: int) -> np.ndarray:
    """A red disc and a blue bar before a gradient, uint8 [side, side, 3]: nothing of it is symmetric."""
    y, x = np.mgrid[0:side, 0:side] / side
    rgb = np.stack([x, y, 0.3 + 0.4 * np.sin(9 * x + 5 * y) ** 2], -1)
    rgb[(x - 0.3) ** 2 + (y - 0.4) ** 2 < 0.04] = (0.9, 0.1, 0.1)
    rgb[(x > 0.6) & (x < 0.7) & (y > 0.2)] = (0.1, 0.2, 0.8)
    return (rgb * 255).round().astype(np.uint8)


if __name__ == "__main__":
    step(see_images)
