"""The reference that programs are checked against: greedy tokens and logits in float32.

Written by generate_reference.py; numpy only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# As shares of the largest logit.  Source: transformers' own float16 differs from its float32 by
# 0.3 % on a 4-layer Llama; a forgotten rope scaling by 4 % at 11 tokens and by 25 % beyond 25.
# Of float32, a program for CPUs differs by a millionth.
TOLERANCE = {
    "float16": 0.01,
    "bfloat16": 0.04,
    "float32": 1e-4,
}  # of any logit, by the dtype that is computed in
# Two tokens closer than this cannot be told apart.
TIE = {"float16": 0.005, "bfloat16": 0.04, "float32": 5e-5}
MOST_TIES = 0.2  # of the prompts; a trained model has none, a random one a few


@dataclass(frozen=True)
class Answer:
    """One prompt, its greedy tokens, and the logits [tokens, vocab] that each was taken from."""

    prompt: list[int]
    tokens: list[int]
    logits: np.ndarray

    def upto(self, count: int | None) -> "Answer":
        """Its first `count` tokens."""
        return Answer(self.prompt, self.tokens[:count], self.logits[:count])

    def forced(self, logits: Callable[[list[int]], np.ndarray]) -> np.ndarray:
        """Another's logits of each step after the reference's own tokens.

        logits(ids) are those of all of a text.
        """
        found = logits([*self.prompt, *self.tokens[:-1]])
        return found[len(self.prompt) - 1 :]

    def ties(self, peak: float, dtype: str) -> np.ndarray:
        """Of each greedy token, whether the second best was as good in `dtype`."""
        top = np.partition(self.logits, -2, axis=-1)[:, -2:]
        return top[:, 1] - top[:, 0] < TIE[dtype] * peak


def peak(answers: list[Answer]) -> float:
    """The largest logit of all."""
    return max(float(np.abs(answer.logits).max()) for answer in answers)


def summary(answers: list[Answer]) -> dict:
    """What a record says of the prompts."""
    lengths = [len(answer.prompt) for answer in answers]
    return {"prompts": len(answers), "prompt_tokens": [min(lengths), max(lengths)]}


def read(path: Path) -> list[Answer]:
    with np.load(path) as data:
        prompts = np.split(data["prompts"], np.cumsum(data["prompt_lengths"])[:-1])
        cuts = np.cumsum(data["token_counts"])[:-1]
        tokens, logits = np.split(data["tokens"], cuts), np.split(data["logits"], cuts)
    return [
        Answer(prompt.tolist(), said.tolist(), rows)
        for prompt, said, rows in zip(prompts, tokens, logits, strict=True)
    ]
