"""What transformers makes of texts: token ids, rendered dialogues, and the windows of a corpus.

Written by encode_texts.py.
"""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused

# byte-level BPE writes bytes as letters: those that can be seen as themselves, the others from U+0100 on
SEEN = (*range(33, 127), *range(161, 173), *range(174, 256))
UNSEEN = [byte for byte in range(256) if byte not in SEEN]
BYTES = {chr(byte): byte for byte in SEEN} | {chr(256 + n): byte for n, byte in enumerate(UNSEEN)}


EQUAL = 0.97  # the least share of texts


@dataclass(frozen=True)
class Texts:
    """`strings` and `lines` are texts and their ids, hard ones and all of the corpus; `chats` are
    [messages, text with the opening of an answer]; `corpus` is a list of windows of ids.  `vocabulary` has
    the `tokens`' texts by id, the ids of `special` ones, `bos`, `eos`, all `ends` of an answer, and whether
    the tokenizer `composes` letters and marks (NFC)."""

    strings: list[tuple[str, list[int]]]
    lines: list[tuple[str, list[int]]]
    vocabulary: dict[str, Any]
    chats: list[tuple[list[dict[str, str]], str]]
    corpus: list[list[int]]
    corpus_sha256: str
    corpus_tokens: int  # that the whole text has; the windows may be a sample of it

    def checks(
        self,
        artifact: Path,
        ids: Callable[[str], list[int]],
        chat: Callable[[list[dict[str, str]]], str] | None,
        may_differ: Callable[[str], bool] = lambda text: False,
    ) -> dict[str, Any]:
        """What a record says of an artifact's tokenizer and chat template; refused where they differ.

        `chat` is None where the artifact carries no template.  `may_differ` tells the texts that its
        runtime is known to split otherwise: those that it does are counted, if they are the same letters.
        So are those whose letters and marks the model's own tokenizer composes, and a runtime may not.
        """
        others = 0
        for text, wanted in (*self.strings, *self.lines):
            if (found := ids(text)) == wanted:
                continue
            composed = self.vocabulary["composes"] and not unicodedata.is_normalized("NFC", text)
            same = self._letters(found, composed) == self._letters(wanted, composed)
            if not same or not (composed or may_differ(text)):
                raise Refused(f"{artifact}: {difference(text, found, wanted)}")
            others += 1
        for messages, wanted in self.chats if chat else ():
            if chat and (found := chat(messages)) != wanted:
                raise Refused(
                    f"{artifact}: a dialogue of {len(messages)} messages becomes {found!r}, expected "
                    f"{wanted!r} as by transformers"
                )
        equal = {"texts_equal": len(self.strings) + len(self.lines) - others}
        if others:
            equal["texts_split_otherwise_by_its_runtime"] = others
        return {**equal, "chats_equal": len(self.chats) if chat else 0}

    def nearly(self, artifact: Path, ids: Callable[[str], list[int]]) -> dict[str, Any]:
        """The same of OpenVINO's tokenizer of SentencePiece's pieces, of which a few texts may differ: it
        cuts up odd runs of blanks otherwise, and takes what is written as <0x41> for a byte."""
        found = [*self.strings, *self.lines]
        odd = [(text, ids(text), wanted) for text, wanted in found]
        odd = [one for one in odd if one[1] != one[2]]
        if len(odd) > (1 - EQUAL) * len(found):
            raise Refused(f"{artifact}: {len(odd)} texts differ: {difference(*odd[0])}")
        return {"texts": len(found), "texts_equal": len(found) - len(odd), "texts_limit": EQUAL}

    def _letters(self, ids: list[int], composed: bool) -> str:
        """What the tokens spell; letters and their marks `composed`."""
        known = self.vocabulary["tokens"]
        words = (known[n] if n < len(known) else f"<{n}>" for n in ids)
        spelt = b"".join(map(_bytes_of, words)).decode(errors="surrogateescape")
        return unicodedata.normalize("NFC", spelt) if composed else spelt


def _bytes_of(token: str) -> bytes:
    """Of a token of byte-level BPE, in whose alphabet each letter is a byte; of another its text's."""
    if all(letter in BYTES for letter in token):
        return bytes(BYTES[letter] for letter in token)
    return token.encode(errors="surrogatepass")


def difference(text: str, found: list[int], wanted: list[int]) -> str:
    """Of two encodings of a text, where they part."""
    at = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
    at = min(len(found), len(wanted)) if at is None else at
    near = slice(max(at - 2, 0), at + 6)
    return (
        f"{text!r:.300} becomes {found[near]} from token {near.start} on, expected {wanted[near]} as by "
        "transformers"
    )


def read(path: Path) -> Texts:
    found = json.loads(path.read_bytes())
    return Texts(**found)
