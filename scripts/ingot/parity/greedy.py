"""Greedy continuations held against the reference's: one count, one rule for ties, one refusal.

Where the dtype that is computed in cannot tell the reference's two best tokens apart (a tie), another
token is not wrong; what follows it is another text.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ingot.parity.reference import MOST_TIES, TIE, Answer, peak, summary
from ingot.refused import Refused

FIRST_TOKENS = 0.5  # of a quantised model's, which is another model: so many must agree


class GreedyCheck:
    """Counts prompts whose continuation is the reference's.  `dtype` is what is computed in.

    `rough` is for quantised models: of theirs only the share of equal first tokens is held to a limit.
    """

    def __init__(self, answers: list[Answer], dtype: str, rough: bool = False):
        self.answers, self.dtype, self.rough = answers, dtype, rough
        self.top = peak(answers)
        self.equal = self.ties = self.first_equal = 0
        self.wrong: list[str] = []

    @property
    def asked(self) -> int:
        return self.equal + self.ties + len(self.wrong)

    def steps(self, answer: Answer, chosen: np.ndarray) -> None:
        """Tokens chosen one by one, each after the reference's own: each must be equal, or a tie."""
        differs = chosen != answer.tokens
        wrong = np.flatnonzero(differs & ~answer.ties(self.top, self.dtype))
        self._count(answer, not differs.any(), not len(wrong), f"at step {wrong[:1]}")

    def tokens(self, answer: Answer, said: list[int]) -> None:
        """Tokens generated freely: equal, or equal up to the first tie."""
        certain = self._certain(answer)
        self.first_equal += said[:1] == answer.tokens[:1]
        upto = said[:certain] == answer.tokens[:certain]
        self._count(answer, said == answer.tokens, upto, f"{said}, expected {answer.tokens}")

    def text(self, answer: Answer, said: str, decode: Callable[[list[int]], str]) -> None:
        """A text generated freely: that of the reference's tokens, or the same up to the first tie."""
        expected, count = decode(answer.tokens), self._certain(answer)
        certain = decode(answer.tokens[:count]).rstrip("\ufffd")  # perhaps half a character
        upto = count < len(answer.tokens) and said.startswith(certain)
        self._count(answer, said == expected, upto, f"{said!r}, expected {expected!r}")

    def _certain(self, answer: Answer) -> int:
        """How many of its tokens come before the first that could be another."""
        first = np.flatnonzero(answer.ties(self.top, self.dtype))
        return int(first[0]) if len(first) else len(answer.tokens)

    def _count(self, answer: Answer, equal: bool, tie: bool, detail: str) -> None:
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
