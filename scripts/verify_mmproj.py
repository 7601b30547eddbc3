"""Compare what llama.cpp saw in a picture with what transformers sees in it.  Runs in envs/transformers.

The checkpoint's own image processor cuts the same pixels up, and the whole model reads the tokens that
llama.cpp's library put around the picture.  The distributions of the answer must be the same but for
rounding; those of the negative must not be, or the picture would not matter.
"""

import inspect
from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.options import Limits, RecordFile, step
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import limits, transformers_model, verification
from ingot.parity.transformers_model import OURS, understood

DTYPE = "f16"  # of the file's matrices
# which tokens are the picture's, by families' names
KINDS = ("token_type_ids", "mm_token_type_ids")
MATTERS = 100  # times the limit: what the negative's distributions must be away


def verify_mmproj(
    checkpoint: Checkpoint,
    mmproj: Annotated[Path, "the file to check"],
    seen: Annotated[Path, "what see_images.py wrote of it"],
    record: RecordFile,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(mmproj)
    with stderr_to_log(f"{mmproj}: the picture by transformers"):
        import numpy as np

        from ingot.parity import divergence

        known = np.load(seen)
        if str(known["mmproj"]) != sha256:
            raise Refused(f"{seen}: of another mmproj file, expected what was seen by {mmproj}")
        picture, ids, tokens = (known[name] for name in ("picture", "ids", "tokens"))
        model = transformers_model.load(checkpoint)
        wanted = answered(checkpoint, model, picture, ids, tokens)
        negative = answered(checkpoint, model, 255 - picture, ids, tokens)
        apart = divergence.Divergence()
        apart.add(wanted, divergence.log_softmax(known["logits"]), tokens)
        matters = float((np.exp(wanted) * (wanted - negative)).sum(-1).mean())
    numbers = divergence.held(
        mmproj,
        {**apart.numbers(), "tokens": len(tokens)},
        limits.numbers(DTYPE, limits.pairs(limit or [])),
    )
    if not matters >= MATTERS * limits.MEAN_KL[DTYPE]:
        raise Refused(
            f"{mmproj}: the negative is {matters:.3g} nats away, expected a model that sees a difference: "
            "nothing is shown of its part for images"
        )
    verification.write(
        record,
        mmproj,
        sha256,
        "transformers in float32, on a picture, by llama.cpp's library for images",
        {
            "picture": list(picture.shape[:2]),
            "picture_tokens": int((ids < 0).sum()),
            "numbers": numbers,
            "negative_kl": float(f"{matters:.4g}"),
        },
        way="upstream: llama.cpp's convert_hf_to_gguf.py --mmproj",
        versions=verification.versions("transformers", "torch", "numpy"),
    )


def answered(checkpoint: Checkpoint, model, picture, ids, tokens):
    """Log-probabilities [tokens, vocabulary] by transformers, of each token after the picture and `ids`."""
    import torch
    from transformers import AutoImageProcessor

    from ingot.parity.divergence import log_softmax

    takes = inspect.signature(model.forward).parameters
    with checkpoint.as_folder() as folder, understood(checkpoint["config.json"]), torch.no_grad():
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **OURS)
        pixels = processor(images=[picture], return_tensors="pt")
        given = torch.tensor([[*ids, *tokens[:-1]]])
        shown = given < 0
        given[shown] = model.config.image_token_id
        words = {name: shown.long() for name in KINDS if name in takes}
        words |= {name: value for name, value in pixels.items() if name in takes}
        ones = torch.ones_like(given)
        logits = model(input_ids=given, attention_mask=ones, use_cache=False, **words).logits
    return log_softmax(logits[0, -len(tokens) :].float().numpy())


if __name__ == "__main__":
    step(verify_mmproj)
