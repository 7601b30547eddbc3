"""A record's numbers as a reader wants them: in words, "26 of 26", each beside its limit."""

from collections.abc import Iterator
from typing import Any

COUNTED = {  # how many -> of how many, in the same place of a record
    "tensors_equal": "tensors", "values_rounded": "values", "texts_equal": "texts",
    "texts_equal_but_for_bos": "texts", "greedy_equal": "prompts", "greedy_ties": "prompts",
    "prompts_equal": "prompts", "first_tokens_equal": "prompts", "tokens": "corpus_tokens",
    "left_padded_equal": "left_padded_batches", "layers": "of_layers",
}  # fmt: skip
WORDS = {  # in the order in which they are read
    "files_equal": "files with the digests that SHA256SUMS says",
    "metadata_pairs": "keys of its header, all as they follow from the checkpoint",
    "tensors_equal": "tensors whose values are all the checkpoint's",
    "tensors": "tensors",
    "layers_quantised": "layers of codes, each compared",
    "values": "weights that were compared",
    "values_rounded": "weights that its type rounds",
    "largest_difference": "the most that a weight was rounded by",
    "errors": "error of the weights in {}, as a share of them",
    "largest_error": "error of the weights of a layer at most, as a share of them",
    "mean_error": "error of the weights of a layer on average",
    "texts_equal": "hard texts that become transformers' tokens",
    "texts_equal_but_for_bos": "hard texts that do but for a token at their start",
    "chats_equal": "dialogues that become transformers' tokens",
    "greedy_equal": "prompts answered as transformers answers them, token by token",
    "greedy_ties": "prompts where two tokens were as good",
    "prompts_equal": "prompts answered as transformers answers them",
    "first_tokens_equal": "prompts whose answer begins as transformers' does",
    "streams_equal": "answers that are the same as a stream",
    "largest_logit": "the largest logit",
    "largest_logit_difference": "the most that a logit is off",
    "largest_logprob_difference": "the most that a log probability is off",
    "mean_kl_of_prompts": "mean KL over the prompts, nats per token",
    "mean_kl": "mean KL over a text, nats per token",
    "mean_kl_error": "standard error of that mean",
    "median_kl": "median KL",
    "kl_99": "KL that 99 % of the tokens stay below",
    "kl_99_9": "KL that 99.9 % of the tokens stay below",
    "largest_kl": "largest KL of a token",
    "same_top": "tokens where both would say the same next one",
    "rms_dp": "change of the next token's probability, root mean square",
    "perplexity": "perplexity",
    "perplexity_reference": "perplexity of the model itself",
    "tokens": "tokens of the text that were compared",
    "left_padded_equal": "batches with padding on the left that give the same",
    "picture_tokens": "tokens of a picture",
}
PARTS = ("errors", "numbers")  # of a record, which is read as one with them
SHARES = ("same_top",)
LIMITS = {  # a number -> its limit, in the same place of a record
    "largest_logprob_difference": "logprob_limit", "packed_logit_difference": "packed_limit",
    "decode_difference": "decode_limit", "texts_equal": "texts_limit", "first_tokens_equal": "first_limit",
}  # fmt: skip
LEAST = ("same_top", "texts_equal", "first_tokens_equal")  # whose limit is the least that is right
NAMED = "in_one_batch"  # whose parts are named by models


def said(name: str) -> str:
    """What a number is, by its dotted name in a record's checks."""
    *places, last = name.split(".")
    own = [place.replace("_", " ") for place in places if place not in PARTS]
    words = WORDS["errors"].format(last) if "errors" in places else WORDS.get(last)
    found = words or last.replace("_", " ")
    return f"{', '.join(own)}: {found}" if own else found


def rows(checks: dict[str, Any], limits: dict[str, float], place: str = "") -> list[dict[str, Any]]:
    """Rows of `what`, `found`, `of` and `limit`; `limits` are by dotted names."""
    found, inside = list(_own(checks, limits, place)), []
    for name, value in checks.items():
        named = place.endswith(f"{NAMED}.")
        if not isinstance(value, dict) or (_limits(name) and not named):
            continue
        if name in PARTS and not named:
            found += _own(value, limits, f"{place}{name}.")
        else:
            inside += rows(value, limits, f"{place}{name}.")
    order = [*WORDS]
    found.sort(key=lambda row: order.index(row["last"]) if row["last"] in order else len(order))
    return found + inside


def _own(checks: dict[str, Any], limits: dict[str, float], place: str) -> Iterator[dict[str, Any]]:
    beside = {table[name] for name in checks for table in (COUNTED, LIMITS) if name in table}
    # of blocks of codes the errors say it, and nothing else counts them
    beside |= {"values_rounded", "largest_difference"} if "errors" in checks else set()
    for name, value in checks.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or name in beside:
            continue
        yield {
            "last": "errors" if place.endswith("errors.") else name,
            "what": said(f"{place}{name}"),
            "found": value,
            "share": name in SHARES,
            "of": checks.get(COUNTED.get(name, "")),
            "limit": _limit(checks, name, limits.get(f"{place}{name}")),
        }


def _limits(name: str) -> bool:
    """Is it a part of a record that says limits of others?"""
    return name.endswith(("limits", "_limit"))


def _limit(checks: dict[str, Any], name: str, known: float | None) -> float | str | None:
    """A number, or in words; None where any value is right."""
    if name in ("tensors_equal", "layers_quantised") and isinstance(checks.get("limit"), str):
        return checks["limit"]
    if name == "greedy_ties" and (tie := checks.get("tie_limit")):
        return f"at most {tie['prompts']:.0%} of them, {tie['logits']:.3g} apart"
    if known is None:
        known = checks.get(LIMITS.get(name, ""))
    if known is not None and name in LEAST:
        return f"at least {known:.4%}".replace(".0000", "")
    return known
