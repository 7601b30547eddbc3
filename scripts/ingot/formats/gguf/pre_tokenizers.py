"""How a byte-level BPE tokenizer.json cuts texts into words, known by the whole of its description.

What decides it is the normaliser, every split in its order, how bytes become letters, and whether a word
that is a token is taken whole.  Who goes by a part of it, such as a pattern that it holds, takes
DeepSeek-V3's splits for Llama 3's: the same words for most texts, other tokens for runs of spaces before
digits.  Names are llama.cpp's (`tokenizer.ggml.pre`); patterns are those of the models' own files.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused

APOSTROPHE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
LLAMA = rf"{APOSTROPHE}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
QWEN = rf"{APOSTROPHE}|{WORD}|\p{{N}}|{SIGNS}|{SPACES}"
TEKKEN = rf"{CASED[0]}|{CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
GPT4O = (
    rf"{CASED[0]}{APOSTROPHE}?|{CASED[1]}{APOSTROPHE}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
RUNS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
CASCADE = rf"\s*[\r\n]+|{RUNS}|\s{{1,2}}(?!\S)|\s{{1}}"
PLAIN, GPT2 = "bytes", "bytes, split as GPT-2"  # the last step: letters for bytes
DIGITS = "digits, each alone"
# letters that have a case, as DeepSeek V2 and its kin list them: code points
LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386
388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59
1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC
1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B
A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F
104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
ALPHABET = "".join("-".join(chr(int(end, 16)) for end in one.split("-")) for one in LETTERS.split())
DEEPSEEK_V2 = (
    "[\r\n]", rf"\s?[{ALPHABET}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", DIGITS,
)  # fmt: skip
TAKEN = {  # that a GGUF file of ours can say
    "llama-bpe": (LLAMA, PLAIN),
    "tekken": (TEKKEN, PLAIN),
    "gpt-4o": (GPT4O, PLAIN),
    "qwen2": (QWEN, PLAIN),
    "dbrx": (LLAMA, PLAIN),  # llama-bpe's, of whose words each is merged
    "gpt-2": (GPT2,),
    "starcoder": (DIGITS, GPT2),
    "deepseek-llm": (*DEEPSEEK_V2, PLAIN),
    "deepseek-v3": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK, PLAIN),
    "seed-coder": (
        rf"{APOSTROPHE}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}", PLAIN,
    ),
}  # fmt: skip
ALONE = ("deepseek-llm",)  # whose digits libllama leaves together, which no merge joins
WHOLE = ("llama-bpe", "tekken")  # of which libllama takes each word whole that is a token
# of which a normaliser may compose letters and marks, as libllama never does
COMPOSED = ("qwen2", "qwen35")
NFC = 'normalizer {"type": "NFC"}'
OTHERS = {  # for a refusal that names them
    "qwen35": (
        rf"{APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}",
        PLAIN,
    ),
    "minicpm5": (r"\p{N}{1,3}", rf"{APOSTROPHE}|{WORD}|\p{{N}}+|{SIGNS}|{SPACES}", PLAIN),
    "jais-2": (f"{LLAMA.removesuffix(SPACES)}{CASCADE}", PLAIN),
    "exaone-moe": (
        rf"{APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        PLAIN,
    ),
    "ufakzeka": (rf"{WORD}|\p{{N}}|{SIGNS}|{SPACES}", PLAIN),
}  # fmt: skip
FORM = {  # what is read of a tokenizer.json here, as `fields.held` takes it
    "model?": ({"byte_fallback?": (bool, None), "ignore_merges?": (bool, None)}, None),
    "normalizer?": ({}, None),
    "pre_tokenizer?": ({}, None),
}
# of which libllama's pattern is near, not equal: it knows the case of ASCII letters alone, and no marks
NEAR = ("tekken", "gpt-4o")


def named(tokenizer: dict[str, Any]) -> str | None:
    """llama.cpp's name of how this tokenizer.json splits; None where it is none of those that we know."""
    found = steps(tokenizer)
    composed = found[1:] if found[:1] == [NFC] else found
    if found == [LLAMA, PLAIN]:
        return "llama-bpe" if _takes_whole(tokenizer) else "dbrx"
    return next(
        (
            name
            for name, known in {**TAKEN, **OTHERS}.items()
            if list(known) == (composed if name in COMPOSED else found)
        ),
        None,
    )


def steps(tokenizer: dict[str, Any]) -> list[str]:
    """What is done to a text before merges, a line each: patterns, and what else there is as JSON."""
    found = [_other("normalizer", one) for one in _flat(tokenizer.get("normalizer"), "normalizers")]
    for one in _flat(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = one.get("type")
        regex = one["pattern"].get("Regex") if isinstance(one.get("pattern"), dict) else None
        if kind == "Split" and isinstance(regex, str) and _isolates(one):
            found.append(regex)
        elif kind == "Digits" and one.get("individual_digits") is True:
            found.append(DIGITS)
        elif kind == "ByteLevel" and one.get("add_prefix_space") is False:
            found.append(PLAIN if one.get("use_regex") is False else GPT2)
        else:
            found.append(_other("pre_tokenizer", one))
    return found


def hold(path: Path, tokenizer: dict[str, Any], wanted: str) -> None:
    """Refused unless the tokenizer.json at `path` cuts texts as libllama does for `wanted`."""
    found = named(tokenizer)
    if found != wanted:
        raise Refused(
            f"{path}: splits texts as {described(tokenizer)}, expected {wanted} by the catalogue; "
            "correct pre_tokenizer: there"
        )
    hold_merges(path, tokenizer, wanted)


def hold_merges(path: Path, tokenizer: dict[str, Any], wanted: str) -> None:
    whole = _takes_whole(tokenizer)
    if wanted in WHOLE and not whole:
        raise Refused(
            f"{path}: model.ignore_merges is not true, expected it of {wanted}, of which libllama takes "
            "each word whole that is a token; take the base model's newest tokenizer.json, which says so"
        )
    if whole and wanted not in WHOLE:
        raise Refused(
            f"{path}: model.ignore_merges is true, expected false of {wanted}, of which libllama merges "
            "each word; take the base model's tokenizer.json"
        )
    if wanted in ALONE and (odd := next(filter(_pairs_digits, _merges(tokenizer)), None)):
        raise Refused(
            f"{path}: merges {odd}, expected no digits merged by a {wanted}, of which libllama splits none"
        )


def _merges(tokenizer: dict[str, Any]) -> list[str]:
    found = (tokenizer.get("model") or {}).get("merges") or []
    return [one if isinstance(one, str) else " ".join(map(str, one)) for one in found]


def _pairs_digits(merge: str) -> bool:
    return bool(re.search(r"[0-9]{2}", merge.replace(" ", "")))


def _takes_whole(tokenizer: dict[str, Any]) -> bool:
    """Is a word that is a token taken as it is, without merges?"""
    return (tokenizer.get("model") or {}).get("ignore_merges") is True


def described(tokenizer: dict[str, Any]) -> str:
    """In a few words, for a message."""
    if name := named(tokenizer):
        return name
    found = (one if len(one) < 60 else f"{one[:57]}..." for one in steps(tokenizer))
    return " then ".join(found) or "one word"


def differs_in_libllama(name: str, text: str) -> bool:
    """May libllama split `text` otherwise than the models whose pre-tokenizer has this name?"""
    if name in ALONE:
        # of a vocabulary that merges digits; and libllama's spaces are ASCII's here
        numeric = [letter.isnumeric() for letter in text]
        pairs = any(one and other for one, other in itertools.pairwise(numeric))
        return pairs or bool(re.search(r"[^\S\x00-\x7f]", text))
    if name not in NEAR or text.isascii():
        return False
    import unicodedata

    kinds = {unicodedata.category(letter) for letter in text if not letter.isascii()}
    return bool(kinds & {"Lu", "Ll", "Lt", "Mn", "Mc", "Me"})


def _flat(step: Any, inside: str) -> list[dict[str, Any]]:
    """The steps of a sequence, of sequences in it too."""
    if step is None:
        return []
    if not isinstance(step, dict):
        return [{"type": step}]
    if step.get("type") == "Sequence" and isinstance(step.get(inside), list):
        return [one for each in step[inside] for one in _flat(each, inside)]
    return [step]


def _isolates(split: dict[str, Any]) -> bool:
    return split.get("behavior") == "Isolated" and split.get("invert", False) is False


def _other(kind: str, step: dict[str, Any]) -> str:
    return f"{kind} {json.dumps(step, sort_keys=True, ensure_ascii=False)}"
