"""A checkpoint's special tokens as GGUF key/value pairs: their ids, and which are added to a prompt.

As llama.cpp's SpecialVocab reads them (gguf-py/gguf/vocab.py of the commit in envs/llamacpp), quirks
included: a token that is set as an object never equals its text in the post-processor.
"""

from typing import Any

from ingot.base.fields import Whole, read_json
from ingot.formats.gguf.kv import KV
from ingot.model.checkpoint.files import Checkpoint

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
KEY_OF = {  # of the kinds that have one
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # spelt so in the specification
    "pad": "padding",
    "mask": "mask",
    "eot": "eot",
    "eom": "eom",
}
ADDED = ("bos", "eos", "sep")  # that have a key
TEMPLATE_ITEM = {"SpecialToken?": {"id?": str}, "Sequence?": {"id?": str}}
STEP = {"type?": str, "single?": [TEMPLATE_ITEM], "pair?": [TEMPLATE_ITEM]}
POST_PROCESSOR = {"post_processor?": ({**STEP, "processors?": [STEP]}, None)}  # of tokenizer.json
TOKEN = (str, {"content?": (str, None)}, None)
SETTINGS = {f"{kind}_token?": TOKEN for kind in (*KINDS, "eot", "eom")}  # of tokenizer_config.json
IDS = {  # of a config.json; -1 says that there is none
    f"{kind}_token_id?": (Whole(-1, 2**32 - 1), [Whole(-1, 2**32 - 1)], None)
    for kind in (*KINDS, "eot", "eom")
}

Names = dict[str, Any]  # of each kind its token, as its setting spells it


def tokens(checkpoint: Checkpoint, tokenizer: dict, settings: dict, limit: int | None) -> list[KV]:
    """Of the files tokenizer.json, tokenizer_config.json and config.json; ids are below `limit`."""
    names: Names = {kind: settings.get(f"{kind}_token") for kind in KINDS}
    adds: dict[str, bool] = {}
    if tokenizer:
        names["bos"] = names["bos"] or names["cls"]
        names["eos"] = names["eos"] or names["sep"]
        adds = _post_processed(tokenizer.get("post_processor") or {}, names)
    for kind in names:
        wish = settings.get(f"add_{kind}_token")
        if isinstance(wish, bool):
            adds.setdefault(kind, wish)
    ids = _ids(checkpoint, tokenizer, names, limit)
    kvs = [KV(f"tokenizer.ggml.{KEY_OF[kind]}_token_id", "u32", n) for kind, n in ids.items()]
    return kvs + [
        KV(f"tokenizer.ggml.add_{kind}_token", "bool", yes)
        for kind, yes in adds.items()
        if kind in ADDED
    ]


def _ids(
    checkpoint: Checkpoint, tokenizer: dict, names: Names, limit: int | None
) -> dict[str, int]:
    """By their names, or else those of config.json."""
    first: dict[str, int] = {}
    for token in tokenizer.get("added_tokens", []):
        first.setdefault(token["content"], token["id"])
    config = read_json(checkpoint["config.json"], {**IDS, "text_config?": (IDS, None)})
    inner = config.get("text_config") or {}
    named = {kind: first.get(_content(name)) for kind, name in names.items()}
    ids: dict[str, int] = {}
    for source in (named, {kind: _said(config, inner, f"{kind}_token_id") for kind in names}):
        for kind, number in source.items():
            if isinstance(number, int) and number >= 0 and (limit is None or number < limit):
                ids.setdefault(kind, number)
    return {kind: number for kind, number in ids.items() if kind in KEY_OF}


def _said(config: dict, inner: dict, key: str) -> Any:
    found = config.get(key)
    return inner.get(key) if found is None else found


def _content(token: str | dict | None) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _post_processed(processor: dict, names: Names) -> dict[str, bool]:
    """What the post-processor of tokenizer.json adds; `names` learn the tokens that it names."""
    adds: dict[str, bool] = {}
    for step in processor.get("processors", [processor]):
        if step.get("type") == "ByteLevel":
            adds.setdefault("bos", False)
            adds.setdefault("eos", False)
        elif step.get("type") == "RobertaProcessing":
            adds |= dict.fromkeys(ADDED, True)
        elif step.get("type") == "TemplateProcessing":
            adds |= _template(step.get("single", []), step.get("pair", []), names)
    return adds


def _template(single: list[dict], pair: list[dict], names: Names) -> dict[str, bool]:
    adds, first, last = {}, None, None
    if len(single) > 1:
        first, last = _token(single[0]), _token(single[-1])
    if first:
        if first not in (names["bos"], names["cls"]):
            names["bos"] = names["bos"] or first
            names["cls"] = names["cls"] or first
        adds["bos"] = first in (names["bos"], names["cls"])
    if last:
        if last != names["eos"]:  # the one it had may end a turn
            free = next((kind for kind in ("eot", "eom") if kind not in names), None)
            names |= {free: names["eos"]} if free else {}
        names["eos"] = last
        adds["eos"] = True
    if separator := _separators(pair, first, last):
        ends = (names["sep"], names["eos"])
        known = [one is not None and one in ends for one in separator]
        adds["sep"] = (known[0] and not last) or (len(known) == 2 and known[1])
        if adds["sep"]:
            names["sep"] = names["sep"] or names["eos"]
    return adds


def _token(item: dict) -> str | None:
    return item.get("SpecialToken", {}).get("id")


def _separators(pair: list[dict], first: str | None, last: str | None) -> list[str | None]:
    """The special tokens between A and B of a pair template, its outer ones removed."""
    if first and pair and _token(pair[0]) == first:
        pair = pair[1:]
    if last and pair and _token(pair[-1]) == last:
        pair = pair[:-1]
    ends = [item.get("Sequence", {}).get("id") for item in (pair[:1] + pair[-1:])]
    return [_token(item) for item in pair[1:-1]] if ends == ["A", "B"] else []
