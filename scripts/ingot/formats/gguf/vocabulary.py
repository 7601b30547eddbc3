"""A checkpoint's tokenizer files as GGUF key/value pairs.

Byte-level BPE (tokenizer.json) and SentencePiece (tokenizer.model, or what transformers made of it in
a tokenizer.json); the meaning of each key is llama.cpp's (conversion/base.py and gguf-py/gguf/vocab.py
of the commit in envs/llamacpp).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ingot.base.fields import Whole, held
from ingot.base.refused import Refused
from ingot.formats.gguf import pre_tokenizers, special, templates
from ingot.formats.gguf.kv import KV
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import ModelConfig

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ID = Whole(low=0)
TOKENIZER = {  # what is read of a tokenizer.json; shapes are those of `fields.held`
    "model?": {
        "type?": (str, None),
        "byte_fallback?": (bool, None),
        "unk_token?": (str, None),
        "vocab?": {str: ID},
        "merges?": [(str, [str])],
    },
    "added_tokens?": [{"id": ID, "content": str, "special?": bool}],
    **special.POST_PROCESSOR,
}
SETTINGS = {  # of a tokenizer_config.json
    "add_prefix_space?": (bool, None),
    "added_tokens_decoder?": {str: {"content": str, "special?": bool}},
    **templates.SETTING,
    **special.SETTINGS,
}
EOT = "tokenizer.ggml.eot_token_id"
CODE_LLAMA, CODE_LLAMA_EOT = 32016, 32010  # tokens, and the one after an infilling
BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
LOOKS_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


def vocabulary(checkpoint: Checkpoint, config: ModelConfig, pre_tokenizer: str) -> list[KV]:
    """The `tokenizer.*` pairs.  `pre_tokenizer` is that of a byte-level BPE vocabulary."""
    settings = checkpoint.optional_json("tokenizer_config.json", SETTINGS)
    prefix = settings.get("add_prefix_space") if config.family.says_prefix_space else None
    kvs = [] if prefix is None else [KV("tokenizer.ggml.add_space_prefix", "bool", prefix)]
    tokenizer = checkpoint.optional_json("tokenizer.json", TOKENIZER)
    sentencepiece, limit = "tokenizer.model" in checkpoint, config.vocab
    fallback = not sentencepiece and tokenizer.get("model", {}).get("byte_fallback") is True
    if (sentencepiece or fallback) != (pre_tokenizer == "default"):
        found = (
            "a tokenizer.model"
            if sentencepiece
            else "a tokenizer.json with byte fallback"
            if fallback
            else "no tokenizer.model"
        )
        raise Refused(
            f"{checkpoint}: {found}, but pre_tokenizer is {pre_tokenizer} in the catalogue; default "
            "means SentencePiece"
        )
    if sentencepiece:
        kvs += _sentencepiece(checkpoint, config, tokenizer, settings)
    elif fallback:
        kvs += _byte_fallback(checkpoint["tokenizer.json"], tokenizer, config)
    else:
        kvs += _bpe(checkpoint["tokenizer.json"], tokenizer, config, pre_tokenizer)
        limit = None
    kvs += special.tokens(checkpoint, tokenizer, settings, limit)
    kvs += templates.templates(checkpoint, settings) + _code_llama(kvs)
    if config.family.no_prefix_space and (sentencepiece or fallback):
        kvs.append(KV("tokenizer.ggml.add_space_prefix", "bool", False))
    return kvs


def _code_llama(kvs: list[KV]) -> list[KV]:
    """Where CodeLlama's infilling ends, which no file of it says: llama.cpp tells it by its size."""
    tokens = next(kv.value for kv in kvs if kv.key == "tokenizer.ggml.tokens")
    if len(tokens) != CODE_LLAMA or tokens[CODE_LLAMA_EOT] != "\u2581<EOT>":
        return []
    return [] if any(kv.key == EOT for kv in kvs) else [KV(EOT, "u32", CODE_LLAMA_EOT)]


def _bpe(path: Path, tokenizer: dict, config: ModelConfig, pre_tokenizer: str) -> list[KV]:
    model = tokenizer.get("model", {})
    pre_tokenizers.hold(path, tokenizer, pre_tokenizer)
    text_of, added = _texts(path, tokenizer, config)
    tokens, types = [], []
    for number in range(config.vocab):
        if number not in text_of:
            tokens.append(f"[PAD{number}]")
            types.append(UNUSED)
        elif number not in added:
            tokens.append(text_of[number])
            types.append(NORMAL)
        else:
            text, kind = _added(added[number])
            tokens.append(text)
            types.append(kind)
    return [
        KV("tokenizer.ggml.model", "str", "gpt2"),
        KV("tokenizer.ggml.pre", "str", pre_tokenizer),
        KV("tokenizer.ggml.tokens", "[str]", tokens),
        KV("tokenizer.ggml.token_type", "[i32]", types),
        KV("tokenizer.ggml.merges", "[str]", [_merge(merge) for merge in model["merges"]]),
    ]


def _byte_fallback(path: Path, tokenizer: dict, config: ModelConfig) -> list[KV]:
    """Of a tokenizer.model that transformers rewrote; a score says which merge comes first.

    llama.cpp gives every token -1000: of two merges that compete libllama then takes the left one.
    """
    text_of, added = _texts(path, tokenizer, config)
    unknown = tokenizer["model"].get("unk_token")
    rank: dict[str, int] = {}
    for merge in tokenizer["model"]["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        rank.setdefault("".join(parts), len(rank))
    tokens, scores, types = [], [], []
    for number in range(config.vocab):
        text, kind = text_of.get(number), NORMAL
        if text is None:
            text, kind = f"[PAD{number}]", UNUSED
        elif text == unknown:
            kind = UNKNOWN
        elif number in added:
            text, kind = _added(added[number])
        elif BYTE_TOKEN.fullmatch(text):
            kind = BYTE
        tokens.append(text)
        types.append(kind)
        scores.append(-float(rank[text]) if kind == NORMAL and text in rank else -1000.0)
    return _scored(tokens, scores, types)


def _scored(tokens: list[str], scores: list[float], types: list[int]) -> list[KV]:
    return [
        KV("tokenizer.ggml.model", "str", "llama"),
        KV("tokenizer.ggml.pre", "str", "default"),
        KV("tokenizer.ggml.tokens", "[str]", tokens),
        KV("tokenizer.ggml.scores", "[f32]", scores),
        KV("tokenizer.ggml.token_type", "[i32]", types),
    ]


def _texts(
    path: Path, tokenizer: dict, config: ModelConfig
) -> tuple[dict[int, str], dict[int, dict]]:
    """Of each id in a tokenizer.json its text, and of added tokens their entries."""
    model = tokenizer.get("model", {})
    if model.get("type") != "BPE":
        raise Refused(f"{path}: model is {model.get('type')}, expected BPE; it can't be converted")
    held(path, model, {"vocab": {str: ID}, "merges": [(str, [str])]}, "model")
    added = _placed(path, model["vocab"], tokenizer.get("added_tokens", []))
    text_of = {number: text for text, number in model["vocab"].items()}
    text_of.update({number: token["content"] for number, token in added.items()})
    if not text_of:
        raise Refused(f"{path}: model.vocab is empty, expected tokens; fetch or copy it again")
    if odd := [one for one in model["merges"] if isinstance(one, list) and len(one) != 2]:
        raise Refused(f"{path}: merge {odd[0]}, expected two parts; fetch or copy it again")
    if max(text_of) >= config.vocab:
        raise Refused(
            f"{path}: token id {max(text_of)} ({text_of[max(text_of)]!r}), expected ids below "
            f"vocab_size {config.vocab} of config.json"
        )
    return text_of, added


def _placed(path: Path, vocab: dict[str, int], added: list[dict]) -> dict[int, dict]:
    """Added tokens by id.  Refused where the tokenizers library gives one a different id from the file's:
    it counts on from the vocabulary, so that each id behind a gap would be another token's."""
    known, free = dict(vocab), len(vocab)
    for token in added:
        text, number = token["content"], token["id"]
        wanted = known.setdefault(text, free)
        if number != wanted:
            raise Refused(
                f"{path}: added token {text!r} has id {number}, expected {wanted}, which the tokenizers "
                "library gives it; correct the file"
            )
        free = max(free, number + 1)
    return {token["id"]: token for token in added}


def _merge(merge: str | list[str]) -> str:
    """A pair as one string; a space inside a part is written U+0120, as bytes are in this BPE."""
    if isinstance(merge, str):
        return merge
    return " ".join(part.replace(" ", "\u0120") for part in merge)


def _added(token: dict) -> tuple[str, int]:
    text = token["content"]
    pipes = text.startswith(("<|", "<｜")) and text.endswith(("|>", "｜>"))
    unused = text.startswith("<unused") and text.endswith(">")
    if token.get("special") or text in LOOKS_SPECIAL or pipes or unused:
        return text, CONTROL
    return text.replace("\u2581", " "), USER_DEFINED


def _sentencepiece(
    checkpoint: Checkpoint, config: ModelConfig, tokenizer: dict, settings: dict
) -> list[KV]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor()
    try:
        model.LoadFromFile(str(checkpoint["tokenizer.model"]))
    except (RuntimeError, OSError):
        raise Refused(
            f"{checkpoint['tokenizer.model']}: not a SentencePiece model; fetch or copy it again"
        ) from None
    count = config.vocab
    tokens = [f"[PAD{number}]" for number in range(count)]
    scores, types = [-10000.0] * count, [UNUSED] * count
    kinds = (
        (UNKNOWN, model.IsUnknown),
        (CONTROL, model.IsControl),
        (UNUSED, model.IsUnused),
        (BYTE, model.IsByte),
    )
    for number in range(min(count, model.vocab_size())):
        tokens[number] = model.IdToPiece(number)
        scores[number] = model.GetScore(number)
        types[number] = next((kind for kind, holds in kinds if holds(number)), NORMAL)
    for text, number in checkpoint.optional_json("added_tokens.json", {str: ID}).items():
        if number < count:
            tokens[number], scores[number], types[number] = text, -1000.0, USER_DEFINED
    for number, token in _added_by_id(checkpoint, config, tokenizer, settings):
        if number < count:
            text, kind = _added(token)
            if config.family.plain_added:
                text, kind = token["content"], CONTROL if token.get("special") else USER_DEFINED
            tokens[number], scores[number], types[number] = text, -1000.0, kind
    return _scored(tokens, scores, types)


def _added_by_id(
    checkpoint: Checkpoint, config: ModelConfig, tokenizer: dict, settings: dict
) -> Iterator[tuple[int, dict]]:
    """Those of tokenizer_config.json; of some families then those of tokenizer.json too."""
    for number, token in settings.get("added_tokens_decoder", {}).items():
        if not (number.isascii() and number.isdigit()):
            path = checkpoint["tokenizer_config.json"]
            raise Refused(f"{path}: added_tokens_decoder names {number!r}, expected ids")
        yield int(number), token
    if config.family.plain_added:
        for token in tokenizer.get("added_tokens", []):
            yield token["id"], token
