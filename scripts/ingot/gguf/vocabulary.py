"""A checkpoint's tokenizer files as GGUF key/value pairs.

Byte-level BPE (tokenizer.json) and SentencePiece (tokenizer.model); the meaning of each key is
llama.cpp's (conversion/base.py and gguf-py/gguf/vocab.py of the commit in envs/llamacpp).
"""

import json
from pathlib import Path

from ingot.checkpoint.config import ModelConfig
from ingot.checkpoint.files import Checkpoint
from ingot.fields import Whole, held, read_json
from ingot.gguf.kv import KV
from ingot.refused import Refused

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL_KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
KEY_OF = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # spelt so in the specification
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
# What the splitting pattern of each pre-tokenizer holds and the other's does not.
MARK_OF_PRE = {"llama-bpe": r"\\p{N}{1,3}", "tekken": r"\\p{Lu}"}
ID = Whole(low=0)
TEMPLATE_ITEM = {"SpecialToken?": {"id?": str}, "Sequence?": {"id?": str}}
STEP = {"type?": str, "single?": [TEMPLATE_ITEM], "pair?": [TEMPLATE_ITEM]}
TOKENIZER = {  # what is read of a tokenizer.json; shapes are those of `fields.held`
    "model?": {
        "type?": (str, None),
        "byte_fallback?": (bool, None),
        "vocab?": {str: ID},
        "merges?": [(str, [str])],
    },
    "added_tokens?": [{"id": ID, "content": str, "special?": bool}],
    "post_processor?": ({**STEP, "processors?": [STEP]}, None),
}
TOKEN = (str, {"content?": (str, None)}, None)
TEMPLATE = (str, [{"name?": str, "template": str}], None)
SETTINGS = {  # of a tokenizer_config.json
    "add_prefix_space?": (bool, None),
    "added_tokens_decoder?": {str: {"content": str, "special?": bool}},
    "chat_template?": TEMPLATE,
    **{f"{kind}_token?": TOKEN for kind in SPECIAL_KINDS},
}
SPECIAL_IDS = {  # of a config.json; -1 says that there is none
    f"{kind}_token_id?": (Whole(-1, 2**32 - 1), [Whole(-1, 2**32 - 1)], None)
    for kind in SPECIAL_KINDS
}
LOOKS_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


def vocabulary(checkpoint: Checkpoint, config: ModelConfig, pre_tokenizer: str) -> list[KV]:
    """The `tokenizer.*` pairs.  `pre_tokenizer` is that of a byte-level BPE vocabulary."""
    settings = checkpoint.optional_json("tokenizer_config.json", SETTINGS)
    prefix = settings.get("add_prefix_space")
    kvs = [] if prefix is None else [KV("tokenizer.ggml.add_space_prefix", "bool", prefix)]
    tokenizer = checkpoint.optional_json("tokenizer.json", TOKENIZER)
    sentencepiece = "tokenizer.model" in checkpoint
    if sentencepiece != (pre_tokenizer == "default"):
        found = "a tokenizer.model" if sentencepiece else "no tokenizer.model"
        raise Refused(
            f"{checkpoint}: {found}, but pre_tokenizer is {pre_tokenizer} in the catalogue; default "
            "means SentencePiece"
        )
    if sentencepiece:
        kvs += _sentencepiece(checkpoint, config, settings)
        limit = config.vocab
    else:
        kvs += _bpe(checkpoint["tokenizer.json"], tokenizer, config, pre_tokenizer)
        limit = None
    return kvs + _special(checkpoint, tokenizer, settings, limit) + _template(checkpoint, settings)


def _bpe(path: Path, tokenizer: dict, config: ModelConfig, pre_tokenizer: str) -> list[KV]:
    model = tokenizer.get("model", {})
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise Refused(
            f"{path}: model is {model.get('type')} with byte fallback, expected byte-level BPE; "
            "add the checkpoint's tokenizer.model"
        )
    if MARK_OF_PRE[pre_tokenizer] not in json.dumps(tokenizer.get("pre_tokenizer")):
        raise Refused(
            f"{path}: its pre_tokenizer is not that of {pre_tokenizer}; correct pre_tokenizer: in the "
            "catalogue"
        )
    held(path, model, {"vocab": {str: ID}, "merges": [(str, [str])]}, "model")
    added = {token["id"]: token for token in tokenizer.get("added_tokens", [])}
    text_of = {number: text for text, number in model["vocab"].items()}
    text_of.update({number: token["content"] for number, token in added.items()})
    if not text_of:
        raise Refused(f"{path}: model.vocab is empty, expected tokens; fetch it again")
    if odd := [one for one in model["merges"] if isinstance(one, list) and len(one) != 2]:
        raise Refused(f"{path}: merge {odd[0]}, expected two parts; fetch it again")
    if max(text_of) >= config.vocab:
        raise Refused(
            f"{path}: token id {max(text_of)} ({text_of[max(text_of)]!r}), expected ids below "
            f"vocab_size {config.vocab} of config.json"
        )
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


def _sentencepiece(checkpoint: Checkpoint, config: ModelConfig, settings: dict) -> list[KV]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor()
    try:
        model.LoadFromFile(str(checkpoint["tokenizer.model"]))
    except (RuntimeError, OSError):
        raise Refused(
            f"{checkpoint['tokenizer.model']}: not a SentencePiece model; fetch it again"
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
    for number, token in settings.get("added_tokens_decoder", {}).items():
        if not (number.isascii() and number.isdigit()):
            path = checkpoint["tokenizer_config.json"]
            raise Refused(
                f"{path}: added_tokens_decoder names {number!r}, expected ids; correct it"
            )
        if int(number) < count:
            text, kind = _added(token)
            tokens[int(number)], scores[int(number)], types[int(number)] = text, -1000.0, kind
    return [
        KV("tokenizer.ggml.model", "str", "llama"),
        KV("tokenizer.ggml.pre", "str", "default"),
        KV("tokenizer.ggml.tokens", "[str]", tokens),
        KV("tokenizer.ggml.scores", "[f32]", scores),
        KV("tokenizer.ggml.token_type", "[i32]", types),
    ]


def _special(
    checkpoint: Checkpoint, tokenizer: dict, settings: dict, limit: int | None
) -> list[KV]:
    """Ids of the special tokens, and whether one is added to every prompt."""
    names = {kind: _content(settings.get(f"{kind}_token")) for kind in SPECIAL_KINDS}
    adds = _added_by_template(tokenizer, names)
    for kind in SPECIAL_KINDS:
        wish = settings.get(f"add_{kind}_token")
        if isinstance(wish, bool):
            adds.setdefault(kind, wish)
    first_id = {}
    for token in tokenizer.get("added_tokens", []):
        first_id.setdefault(token["content"], token["id"])
    config = read_json(checkpoint["config.json"], SPECIAL_IDS)
    ids = {}
    for source in (
        {kind: first_id.get(name) for kind, name in names.items() if name},
        {kind: config.get(f"{kind}_token_id") for kind in SPECIAL_KINDS},
    ):
        for kind, number in source.items():
            if isinstance(number, int) and number >= 0 and (limit is None or number < limit):
                ids.setdefault(kind, number)
    kvs = [KV(f"tokenizer.ggml.{KEY_OF[kind]}_token_id", "u32", n) for kind, n in ids.items()]
    return kvs + [KV(f"tokenizer.ggml.add_{kind}_token", "bool", yes) for kind, yes in adds.items()]


def _content(token: str | dict | None) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _added_by_template(tokenizer: dict, names: dict[str, str | None]) -> dict[str, bool]:
    """What the post-processor of tokenizer.json adds.  Updates nothing; `names` are the tokens."""
    adds: dict[str, bool] = {}
    processor = tokenizer.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        if step.get("type") == "ByteLevel":
            adds.setdefault("bos", False)
            adds.setdefault("eos", False)
        elif step.get("type") == "TemplateProcessing":
            single, pair = step.get("single", []), step.get("pair", [])
            first = last = None
            if len(single) > 1:
                first, last = _template_token(single[0]), _template_token(single[-1])
                if first:
                    adds["bos"] = first in (names["bos"], names["cls"])
                if last:
                    adds["eos"] = last == names["eos"]
            if separator := _separators(pair, first, last):
                ends = (names["sep"], names["eos"])
                adds["sep"] = (separator[0] in ends and not last) or (
                    len(separator) == 2 and separator[1] in ends
                )
    return adds


def _template_token(item: dict) -> str | None:
    return item.get("SpecialToken", {}).get("id")


def _separators(pair: list[dict], first: str | None, last: str | None) -> list[str | None]:
    """The special tokens between A and B of a pair template, its outer ones removed."""
    if first and pair and _template_token(pair[0]) == first:
        pair = pair[1:]
    if last and pair and _template_token(pair[-1]) == last:
        pair = pair[:-1]
    ends = [item.get("Sequence", {}).get("id") for item in (pair[:1] + pair[-1:])]
    return [_template_token(item) for item in pair[1:-1]] if ends == ["A", "B"] else []


def _template(checkpoint: Checkpoint, settings: dict) -> list[KV]:
    template = settings.get("chat_template")
    if template is None and "chat_template.jinja" in checkpoint:
        path = checkpoint["chat_template.jinja"]
        try:
            template = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise Refused(f"{path}: not UTF-8, expected a template; fetch it again") from None
    elif template is None:
        held_template = {"chat_template?": TEMPLATE}
        template = checkpoint.optional_json("chat_template.json", held_template).get(
            "chat_template"
        )
    if isinstance(template, list):  # named templates: the default one serves
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return [] if template is None else [KV("tokenizer.chat_template", "str", template)]
