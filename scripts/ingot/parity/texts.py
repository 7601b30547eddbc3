"""What transformers makes of texts: token ids, rendered dialogues, and the windows of a corpus.

Written by encode_texts.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.refused import Refused


@dataclass(frozen=True)
class Texts:
    """`chats` are [messages, text with the opening of an answer]; `corpus` is a list of windows of ids."""

    strings: list[tuple[str, list[int]]]
    chats: list[tuple[list[dict[str, str]], str]]
    corpus: list[list[int]]
    corpus_sha256: str
    corpus_tokens: int  # that the whole text has; the windows may be a sample of it

    def checks(
        self,
        artifact: Path,
        ids: Callable[[str], list[int]],
        chat: Callable[[list[dict[str, str]]], str] | None,
    ) -> dict[str, Any]:
        """What a record says of an artifact's tokenizer and chat template; refused where they differ.

        `chat` is None where the artifact carries no template.
        """
        for text, wanted in self.strings:
            if (found := ids(text)) != wanted:
                raise Refused(
                    f"{artifact}: {text!r} becomes {found}, expected {wanted} as by transformers; is "
                    "the pre_tokenizer of the catalogue right?"
                )
        for messages, wanted in self.chats if chat else ():
            if (found := chat(messages)) != wanted:
                raise Refused(
                    f"{artifact}: a dialogue of {len(messages)} messages becomes {found!r}, expected "
                    f"{wanted!r} as by transformers"
                )
        return {"texts_equal": len(self.strings), "chats_equal": len(self.chats) if chat else 0}


def read(path: Path) -> Texts:
    found = json.loads(path.read_bytes())
    return Texts(**found)
