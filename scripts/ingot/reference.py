"""The reference that programs are held against: greedy tokens and logits in float32.

Written by generate_reference.py; numpy only.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

# The largest difference of a logit, as a share of the largest logit.  Source: transformers' own
# float16 against its float32 differs by 0.3 % on a 4-layer Llama; a forgotten rope scaling by 4 %
# at 11 tokens and by more than 25 % beyond 25.
TOLERANCE = {"float16": 0.01}


@dataclass(frozen=True)
class Answer:
    """One prompt, its greedy tokens, and the logits [tokens, vocab] that each was taken from."""

    prompt: list[int]
    tokens: list[int]
    logits: np.ndarray

    def gaps(self) -> np.ndarray:
        """How far each greedy token was ahead of the second best."""
        top = np.partition(self.logits, -2, axis=-1)[:, -2:]
        return top[:, 1] - top[:, 0]


def read(path: Path) -> list[Answer]:
    with np.load(path) as data:
        prompts = np.split(data["prompts"], np.cumsum(data["prompt_lengths"])[:-1])
        cuts = np.cumsum(data["token_counts"])[:-1]
        tokens, logits = np.split(data["tokens"], cuts), np.split(data["logits"], cuts)
    return [
        Answer(prompt.tolist(), said.tolist(), rows)
        for prompt, said, rows in zip(prompts, tokens, logits, strict=True)
    ]
