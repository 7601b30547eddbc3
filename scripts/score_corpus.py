"""Log-probabilities of a checkpoint over a corpus by transformers in float32.  Runs in envs/transformers.

What the distributions of lossy formats are compared with.  Kept in float32: 16 bits would cost as
much as q8_0 itself.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import stream
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import TextsFile, step
from ingot.base.progress import Progress
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import texts as texts_of


def score_corpus(
    checkpoint: Checkpoint,
    texts: TextsFile,
    scores: Annotated[Path, "the .npy to write"],
) -> None:
    windows = texts_of.read(texts).corpus
    with stderr_to_log(f"{scores}: scoring by transformers"), replacing(scores) as partial:
        import numpy as np
        import torch

        from ingot.parity import transformers_model

        model = transformers_model.load(checkpoint)
        rows = sum(len(ids) - 1 for ids in windows)
        vocab = model.get_input_embeddings().num_embeddings
        with partial.open("wb") as file:  # [rows, vocabulary]: a window after the other
            head = {
                "descr": "<f4",
                "fortran_order": False,
                "shape": (rows, vocab),
            }
            np.lib.format.write_array_header_1_0(file, head)
            stream.allocate(file.fileno(), file.tell() + rows * vocab * 4, scores)
            progress = Progress(scores.name, len(windows), "windows")
            for ids in windows:
                with torch.no_grad(), transformers_model.understood(checkpoint["config.json"]):
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
                file.write(torch.log_softmax(logits, dim=-1).numpy().data)
                progress.add(1)


if __name__ == "__main__":
    step(score_corpus)
