"""How far one model's next-token distributions are from the reference's, over a corpus: eight numbers.

The same as llama.cpp's `llama-perplexity --kl-divergence`: p is the reference's, q the artifact's.
"""

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.parity.texts import Texts


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Float32 [..., vocabulary], in place of nothing."""
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


class Divergence:
    """Sums over windows: `add` takes log-probabilities [n, vocabulary] and the n tokens that came next."""

    def __init__(self) -> None:
        self.kl: list[np.ndarray] = []  # nats, per token
        self.dp: list[np.ndarray] = []  # q - p of the token that came next
        self.same = 0
        self.nll = self.nll_reference = 0.0

    def add(self, p: np.ndarray, q: np.ndarray, following: np.ndarray) -> None:
        rows = np.arange(len(following))
        self.kl.append((np.exp(p) * (p - q)).sum(axis=-1, dtype=np.float64))
        self.dp.append(np.exp(q[rows, following]) - np.exp(p[rows, following]))
        self.same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
        self.nll -= float(q[rows, following].sum(dtype=np.float64))
        self.nll_reference -= float(p[rows, following].sum(dtype=np.float64))

    def numbers(self) -> dict[str, float]:
        """KL divergences in nats; shares of tokens; perplexities."""
        kl, dp = np.maximum(np.concatenate(self.kl), 0), np.concatenate(self.dp)
        count = len(kl)
        return {
            "mean_kl": _short(kl.mean()),
            "mean_kl_error": _short(kl.std() / sqrt(count)),
            "median_kl": _short(np.median(kl)),
            "kl_99": _short(np.quantile(kl, 0.99)),
            "kl_99_9": _short(np.quantile(kl, 0.999)),
            "largest_kl": _short(kl.max()),
            "same_top": round(self.same / count, 6),
            "rms_dp": _short(np.sqrt((dp**2).mean())),
            "perplexity": round(float(np.exp(self.nll / count)), 4),
            "perplexity_reference": round(float(np.exp(self.nll_reference / count)), 4),
        }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def measure(
    artifact: Path,
    texts: Texts,
    scores: Path,
    logits: Callable[[list[int]], np.ndarray],
    most: int | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """What a record says of `artifact`, whose logits(ids) are float32 [len(ids), vocabulary].

    Where running all takes too long: of `most` windows at most, spread evenly, the first `length` tokens.
    """
    reference = np.load(scores, mmap_mode="r")  # [tokens, vocabulary]: window after window
    total, count = Divergence(), min(most or len(texts.corpus), len(texts.corpus))
    rows = np.cumsum([0] + [len(ids) - 1 for ids in texts.corpus])
    if len(reference) != rows[-1]:
        raise Refused(
            f"{scores}: {len(reference)} tokens, expected {rows[-1]} of the texts; score them again"
        )
    progress = Progress(f"{artifact.name} over the corpus", count, "windows")
    for turn in range(count):
        number = turn * len(texts.corpus) // count
        ids, first = texts.corpus[number][:length], rows[number]
        p = np.asarray(reference[first : first + len(ids) - 1])
        got = logits(ids)[:-1, : p.shape[1]]
        if not np.isfinite(got).all():
            raise Refused(f"{artifact}: logits are not finite over the corpus")
        total.add(p, log_softmax(got), np.array(ids[1:]))
        progress.add(1)
    return {
        **total.numbers(),
        "tokens": sum(map(len, total.kl)),
        "corpus_tokens": texts.corpus_tokens,
        "corpus_sha256": texts.corpus_sha256,
    }


ADVICE = "take a type of more bits, or set `limits` of the catalogue"


def held(
    artifact: Path, numbers: dict[str, Any], limits: dict[str, float], advice: str = ADVICE
) -> dict[str, Any]:
    """`numbers` and their `limits` as a record holds them; refused beyond one."""
    for name, limit in limits.items():
        beyond = numbers[name] < limit if name == "same_top" else numbers[name] > limit
        if beyond:
            word = "at least" if name == "same_top" else "at most"
            raise Refused(
                f"{artifact}: {name} is {numbers[name]:g} over {numbers['tokens']} tokens, expected "
                f"{word} {limit:g}; {advice}"
            )
    return {**numbers, "limits": limits}
