"""What transformers makes of hard texts, a corpus and dialogues.  Runs in envs/transformers.

What the tokenizers and chat templates of other formats are compared with.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated
from unittest import mock

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import ReadingFile, step
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import clock
from ingot.parity import reading as reading_of
from ingot.parity.hard_texts import DIALOGUES, STRINGS
from ingot.parity.transformers_model import OURS, understood

WINDOW = 512  # tokens, or the context where it is shorter
LARGEST = 10**9  # bytes of float32 distributions, as score_corpus.py writes them
PIECE = 400  # characters of the corpus that are encoded at once, or a line more
LEAST = 256  # tokens of a corpus, below which its numbers say nothing


def encode_texts(
    checkpoint: Checkpoint,
    reading: ReadingFile,
    corpus: Annotated[Path, "a text, UTF-8"],
    tokens: Annotated[int, "of it at most, spread evenly"],
    texts: Annotated[Path, "the .json to write"],
) -> None:
    model = reading_of.outline(reading)
    data = corpus.read_bytes()
    try:
        words = data.decode()
    except UnicodeDecodeError:
        raise Refused(f"{corpus}: not UTF-8, expected a text; convert it") from None
    with stderr_to_log(f"{texts}: encoding by transformers"):
        tokenizer = load(checkpoint)
        strings, lines = (
            [(text, tokenizer.encode(text)) for text in of] for of in (STRINGS, pieces(words))
        )
        chats = rendered(tokenizer, checkpoint)
        ids = tokenizer.encode(words, add_special_tokens=False)
        start = tokenizer.encode("")[:1]
        known = vocabulary(checkpoint, tokenizer)
    if len(ids) < LEAST:
        raise Refused(f"{corpus}: {len(ids)} tokens, expected {LEAST} or more; name a longer text")
    length = min(WINDOW, model["context"]) - len(start)
    starts = range(0, len(ids), length)
    windows = [start + ids[at : at + length] for at in starts if at + length <= len(ids)]
    count = max(min(tokens, LARGEST // (4 * model["vocab"])) // WINDOW, 1)
    if count < len(windows):  # spread over the whole text
        windows = [windows[at * len(windows) // count] for at in range(count)]
    found = {
        "strings": strings,
        "lines": lines,
        "vocabulary": known,
        "chats": chats,
        "corpus": windows or [start + ids],
        "corpus_sha256": hashlib.sha256(data).hexdigest(),
        "corpus_tokens": len(ids),
    }
    with replacing(texts) as partial:
        partial.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")


def pieces(text: str) -> list[str]:
    """The whole of a text in runs of lines: a fault in one is shown with what stands around it."""
    found = [""]
    for line in text.splitlines(keepends=True):
        for at in range(0, len(line), PIECE):
            if len(found[-1]) >= PIECE:
                found.append("")
            found[-1] += line[at : at + PIECE]
    return [piece for piece in found if piece]


def load(checkpoint: Checkpoint):
    """tokenizer.json as it stands; where there is none, transformers' own choice.

    LlamaTokenizer of transformers 5 goes by no tokenizer.json: it builds another normaliser, and gives
    Llama 2 other tokens for leading spaces than its file, sentencepiece and libllama do.
    """
    # transformers imports it where it is there, for two seconds; no tokenizer needs it
    sys.modules.setdefault("torch", None)  # ty: ignore[no-matching-overload]
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    named = "tokenizer.json" if "tokenizer.json" in checkpoint else "tokenizer.model"
    kind = PreTrainedTokenizerFast if named == "tokenizer.json" else AutoTokenizer
    with checkpoint.apart()[0].as_folder() as folder, understood(checkpoint[named]):
        return kind.from_pretrained(folder, **OURS)


def vocabulary(checkpoint: Checkpoint, tokenizer) -> dict:
    """The text of each id, which are special, and the ids that begin and end a text, by transformers."""
    from transformers import AutoConfig, GenerationConfig

    with checkpoint.apart()[0].as_folder() as folder:
        said = GenerationConfig.from_model_config(
            AutoConfig.from_pretrained(folder, **OURS)
        ).eos_token_id
        if "generation_config.json" in checkpoint:
            said = GenerationConfig.from_pretrained(folder).eos_token_id
    special = [n for n, token in tokenizer.added_tokens_decoder.items() if token.special]
    return {
        "tokens": tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))),
        "special": sorted(special),
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "ends": sorted({said} if isinstance(said, int) else {*(said or ())}),
        "composes": tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9"),
    }


def rendered(tokenizer, checkpoint: Checkpoint) -> list[tuple[list[dict[str, str]], str]]:
    """The dialogues that its chat template takes, and what each becomes; none where there is no template.

    Refused: a template that takes none of them, such as one that is no Jinja.
    """
    from jinja2.exceptions import TemplateError

    template = tokenizer.chat_template
    if not template or (isinstance(template, dict) and "default" not in template):
        return []
    found, reason = [], None
    with mock.patch("transformers.utils.chat_template_utils.datetime", clock.Noon):
        for messages in DIALOGUES:
            try:
                chat = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
            except TemplateError as error:
                reason = error
            except Exception as error:  # a template may do anything
                raise unlike(error, checkpoint) from None
            else:
                found += [(messages, chat)] if chat else []
    if not found:
        raise unlike(reason or ValueError("it renders nothing"), checkpoint)
    return found


def unlike(error: Exception, checkpoint: Checkpoint) -> Refused:
    names = ("chat_template.jinja", "tokenizer_config.json")
    path = next((checkpoint[name] for name in names if name in checkpoint), checkpoint)
    return Refused(
        f"{path}: its chat template fails ({type(error).__name__}: {str(error).rstrip('.')}), expected one "
        "that transformers renders; take that of the model's authors, or fix it there"
    )


if __name__ == "__main__":
    step(encode_texts)
