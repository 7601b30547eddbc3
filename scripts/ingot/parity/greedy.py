"""Greedy continuations checked against the reference's: one count, one rule for ties, one refusal.

Where the dtype that is computed in cannot tell the reference's two best tokens apart (a tie), another
token is not wrong; what follows it is another text.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.refused import Refused
from ingot.parity.divergence import log_softmax
from ingot.parity.reference import MOST_TIES, TIE, Answer, peak, summary

FIRST_TOKENS = 0.5  # of a quantised model's, which is another model: so many must agree


class GreedyCheck:
    """Counts prompts whose continuation is the reference's.  `dtype` is what is computed in.

    `rough` is for quantised models: of theirs only the share of equal first tokens has a limit.
    """

    def __init__(self, answers: list[Answer], dtype: str, rough: bool = False):
        self.answers, self.dtype, self.rough = answers, dtype, rough
        self.top = peak(answers)
        self.equal = self.ties = self.first_equal = 0
        self.wrong: list[str] = []
        self.by_prompt: list[dict[str, Any]] = []
        self.away: list[float] = []  # the largest difference of a logit, per prompt
        self.kl: list[np.ndarray] = []  # nats, per step

    @property
    def asked(self) -> int:
        return self.equal + self.ties + len(self.wrong)

    def steps(self, answer: Answer, chosen: np.ndarray) -> None:
        """Tokens chosen one by one, each after the reference's own: each must be equal, or a tie."""
        differs = chosen != answer.tokens
        self.first_equal += not differs[0]
        wrong = np.flatnonzero(differs & ~answer.ties(self.top, self.dtype))
        said = chosen.tolist()
        self._count(answer, not differs.any(), not len(wrong), f"at step {wrong[:1]}", said)

    def rows(self, answer: Answer, logits: np.ndarray) -> None:
        """The logits [tokens, vocabulary] of each step after the reference's own tokens."""
        self.away.append(float(np.abs(logits - answer.logits).max()))
        p, q = log_softmax(answer.logits), log_softmax(logits)
        self.kl.append((np.exp(p) * (p - q)).sum(-1, dtype=np.float64))
        self.steps(answer, logits.argmax(-1))
        self.by_prompt[-1]["largest_logit_difference"] = float(f"{self.away[-1]:.4g}")

    def logits(self, artifact: Path, limit: float | None) -> dict[str, Any]:
        """What a record says of `rows`; refused when a logit is off by more than `limit` of the largest."""
        largest = max(self.away) / self.top
        if limit is not None and not largest <= limit:
            raise Refused(
                f"{artifact}: a logit is off by {100 * largest:.3g} % of the largest, expected at most "
                f"{100 * limit:g} %"
            )
        return {
            "largest_logit_difference": float(f"{max(self.away):.4g}"),
            "largest_logit": round(self.top, 6),
            "difference_limit": {"dtype": self.dtype, "share_of_largest_logit": limit},
            "mean_kl_of_prompts": float(f"{max(np.concatenate(self.kl).mean(), 0):.4g}"),
        }

    def tokens(self, answer: Answer, said: list[int]) -> None:
        """Tokens generated freely: equal, or equal up to the first tie."""
        certain = self.certain(answer)
        self.first_equal += said[:1] == answer.tokens[:1]
        upto = said[:certain] == answer.tokens[:certain]
        detail = f"{said}, expected {answer.tokens}"
        self._count(answer, said == answer.tokens, upto, detail, said)

    def text(self, answer: Answer, said: str, decode: Callable[[list[int]], str]) -> None:
        """A text generated freely: that of the reference's tokens, or the same up to the first tie."""
        expected, count = decode(answer.tokens), self.certain(answer)
        certain = decode(answer.tokens[:count]).rstrip("\ufffd")  # perhaps half a character
        upto = count < len(answer.tokens) and said.startswith(certain)
        detail = f"{said!r}, expected {expected!r}"
        self._count(answer, said == expected, upto, detail, said, expected)

    def certain(self, answer: Answer) -> int:
        """How many of its tokens come before the first that could be another."""
        first = np.flatnonzero(answer.ties(self.top, self.dtype))
        return int(first[0]) if len(first) else len(answer.tokens)

    def _count(
        self, answer: Answer, equal: bool, tie: bool, detail: str, said: Any, expected: Any = None
    ) -> None:
        found: dict[str, Any] = {"prompt_tokens": len(answer.prompt), "equal": bool(equal)}
        if not equal:
            found |= {"said": said, "expected": answer.tokens if expected is None else expected}
        self.by_prompt.append(found)
        self.equal += bool(equal)
        self.ties += bool(tie and not equal)
        if not equal and not tie:
            self.wrong.append(f"{len(answer.prompt)} tokens: {detail}")

    def checks(self, artifact: Path, least: int | None = None) -> dict[str, Any]:
        """What a record says.

        Refused when a continuation is wrong, too many are ties, or fewer than `least` prompts were
        asked: by default all.
        """
        least = len(self.answers) if least is None else least
        if self.asked < least:
            raise Refused(
                f"{artifact}: {self.asked} of {len(self.answers)} prompts were asked, expected {least} "
                "or more; give the model `prompts` of its own in the catalogue"
            )
        counts = {
            **summary(self.answers),
            "greedy_equal": self.equal,
            "greedy_ties": self.ties,
            "by_prompt": self.by_prompt,
            "tie_limit": {"dtype": self.dtype, "logits": TIE[self.dtype], "prompts": MOST_TIES},
        }
        if self.rough:
            if self.first_equal < FIRST_TOKENS * self.asked:
                raise Refused(
                    f"{artifact}: the first token of {self.first_equal} of {self.asked} prompts is "
                    "transformers', expected half or more of a quantised model"
                )
            return {**counts, "first_tokens_equal": self.first_equal, "first_limit": FIRST_TOKENS}
        if self.wrong or self.ties > MOST_TIES * self.asked:
            raise Refused(
                f"{artifact}: {self.equal} of {self.asked} prompts continue as transformers does "
                f"({self.ties} ties), expected all; first wrong at {self._first_wrong()}"
            )
        return counts

    def _first_wrong(self) -> str:
        return self.wrong[0] if self.wrong else "none"


def padded(
    artifact: Path,
    check: GreedyCheck,
    batch: Callable[[list[list[int]], int], list[list[int]]],
) -> dict[str, Any]:
    """What a record says of two prompts in one batch, the shorter padded on the left, beside each alone.

    batch(prompts, count) are the first `count` greedy tokens of each; those before the first tie count.
    Refused where they differ; of a quantised model, whose sums round otherwise in a batch, in half of them.
    """
    pairs = equal = 0
    for one, other in pairwise(check.answers):
        count = min(check.certain(one), check.certain(other))
        if count and len(one.prompt) != len(other.prompt):
            alone = [batch([answer.prompt], count)[0] for answer in (one, other)]
            pairs += 1
            equal += batch([one.prompt, other.prompt], count) == alone
    if equal < pairs * (FIRST_TOKENS if check.rough else 1):
        raise Refused(
            f"{artifact}: {equal} of {pairs} batches of two, padded on the left, give each prompt's own "
            "tokens, expected all"
        )
    return {"left_padded_batches": pairs, "left_padded_equal": equal}
