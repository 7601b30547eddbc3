"""A GGUF file as its consumers have it, beside transformers: gguf-py reads its header, libllama runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_file
from ingot.formats.gguf.libllama import Llama
from ingot.formats.gguf.pre_tokenizers import differs_in_libllama
from ingot.parity import clock, divergence
from ingot.parity import reference as reference_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.texts import Texts

COMPUTED = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # what libllama multiplies in


def opened(gguf: Path) -> Any:
    """The file in gguf-py; refused where that cannot read all that the header says."""
    from gguf import GGUFReader

    # first: it has bounds, and one version; a count of 2^60 takes gguf-py all memory
    gguf_file.read(gguf)
    try:
        reader = GGUFReader(gguf)
        for field in reader.fields.values():
            field.contents()
    except Exception as error:  # whatever it meets in a damaged file
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise Refused(
            f"{gguf}: gguf-py cannot read it ({words:.200}), expected a GGUF file"
        ) from None
    return reader


def as_tokenized(gguf: Path, fields: dict, known: dict) -> None:
    """Refuse a file whose vocabulary, read by gguf-py, is not transformers': texts, special ones, ends."""
    from gguf import TokenType

    texts, types = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    for n, wanted in enumerate(known["tokens"]):
        said = texts[n] if n < len(texts) else None
        if wanted is not None and _plain(said) != _plain(wanted):
            raise Refused(f"{gguf}: token {n} is {said!r}, expected {wanted!r} by transformers")
    control = (TokenType.CONTROL, TokenType.UNKNOWN)
    if odd := [n for n in known["special"] if types[n] not in control]:
        raise Refused(f"{gguf}: token {odd[0]} is of type {types[odd[0]]}, expected a special one")
    for name, keys in (("bos", ("bos",)), ("eos", ("eos", "eot"))):  # of a chat, eot is eos
        said = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        if known[name] is not None and known[name] not in said:
            raise Refused(f"{gguf}: {name} is {said[0]}, expected {known[name]} by transformers")


def _plain(token: str | None) -> str | None:
    return token and token.replace("\u2581", " ")  # as SentencePiece writes a blank


@dataclass(frozen=True)
class Expected:
    """What a file is compared with, by transformers, and how far it may be from that."""

    reference: Path
    texts: Texts
    scores: Path
    limits: dict[str, float]  # of divergence's numbers
    # what libllama multiplies in; None: quantised, greedy tokens may be others
    computed: str | None
    # of a logit, as a share of the largest; None: the divergence alone says it
    tolerance: float | None
    advice: str = divergence.ADVICE


def ran(gguf: Path, pre_tokenizer: str, context: int, expected: Expected) -> dict[str, Any]:
    """What a record says of the file in libllama; `context` is the model's, in tokens."""
    answers, texts = reference_of.read(expected.reference), expected.texts
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    room = max(longest, *map(len, texts.corpus))
    with Llama(gguf, min(room, context)) as model:
        checks = texts.checks(
            gguf,
            model.ids,
            lambda said: model.chat(said, clock.NOON),
            lambda text: differs_in_libllama(pre_tokenizer, text),
        )
        numbers = divergence.measure(gguf, texts, expected.scores, model.logits)
        numbers = divergence.held(gguf, numbers, expected.limits, expected.advice)
        if expected.computed:
            checks |= continued(gguf, model.logits, answers, expected)
    return {**checks, "numbers": numbers}


def continued(gguf: Path, logits: Callable, answers: list, expected: Expected) -> dict[str, Any]:
    """Greedy tokens and logits after each of the reference's."""
    check = GreedyCheck(answers, expected.computed or "")
    for answer in answers:
        rows = logits([*answer.prompt, *answer.tokens[:-1]])[len(answer.prompt) - 1 :]
        check.rows(answer, rows[:, : answer.logits.shape[1]])
    return check.checks(gguf) | check.logits(gguf, expected.tolerance)
