"""An ONNX folder as onnxruntime-genai has it, which runs it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.onnx import folder
from ingot.formats.onnx.session import Decoder
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reading import Reading
from ingot.parity.texts import Texts


def as_read(onnx: Path, model: Reading, ends: list[int]) -> None:
    """Refuse a genai_config.json that says another context, vocabulary or end than transformers."""
    said = json.loads((onnx / folder.GENAI).read_bytes())["model"]
    wanted = {
        "context_length": model["context"],
        "vocab_size": model["vocab"],
        "eos_token_id": ends,
    }
    for key, value in wanted.items():
        found = said[key]
        if isinstance(value, list):  # a model with one end may name it alone
            found = sorted(found) if isinstance(found, list) else [found]
        if found != value:
            raise Refused(
                f"{onnx / folder.GENAI}: {key} is {found}, expected {value} by transformers"
            )


def greedy(model: Any, longest: int) -> Any:
    """A generator for one text of at most `longest` tokens."""
    import onnxruntime_genai

    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(
        do_sample=False, repetition_penalty=1.0, max_length=longest, batch_size=1
    )
    return onnxruntime_genai.Generator(model, parameters)


class Session(Decoder):
    """The folder's model in onnxruntime-genai, whatever it keeps of the past: keys, values, states.

    `room` are the least tokens that its cache takes: as many as a window, where it has one.
    """

    def __init__(self, onnx: Path, room: int):
        import onnxruntime_genai

        self.model, self.room = onnxruntime_genai.Model(str(onnx)), room

    def begin(self) -> None:
        self.generator: Any = None

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if self.generator is None:
            self.generator = greedy(self.model, max(self.room, mask.shape[1]))
        self.generator.append_tokens(ids[0].astype(np.int32))
        return np.array(self.generator.get_output("logits")).astype(np.float32)


def continued(onnx: Path, check: GreedyCheck, texts: Texts, room: int = 0) -> dict[str, Any]:
    """What a record says of the same prompts, continued by onnxruntime-genai from the folder.

    And of how its own tokenizer reads texts and dialogues: that is recorded, with no limit, since the
    folder's files are the checkpoint's.  `room` are the least tokens that its cache takes.
    """
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(onnx))
    tokenizer, bos = onnxruntime_genai.Tokenizer(model), texts.vocabulary["bos"]
    found = [(tokenizer.encode(text).tolist(), ids) for text, ids in (*texts.strings, *texts.lines)]
    bare = sum([bos, *ids] == wanted for ids, wanted in found)
    equal = sum(ids == wanted for ids, wanted in found)
    read = {"texts": len(found), "texts_equal": equal, "texts_equal_but_for_bos": bare}
    read["chats_equal"] = sum(rendered(tokenizer, said) == text for said, text in texts.chats)
    padding = json.loads((onnx / folder.GENAI).read_bytes())["model"].get("pad_token_id")
    if padding not in texts.vocabulary["special"]:
        padding = None  # a folder that names another token for it is wrong in all that ends in that
    for answer in check.answers:
        generator = greedy(model, max(room, len(answer.prompt) + len(answer.tokens)))
        # it chooses the first token after the last one that is no padding: behind such a prompt it is told
        said = answer.tokens[:1] if answer.prompt[-1] == padding else []
        generator.append_tokens(np.array([*answer.prompt, *said], np.int32))
        while not generator.is_done() and len(said) < len(answer.tokens):
            generator.generate_next_token()
            said.append(int(generator.get_next_tokens()[0]))
        # behind a token that ends an answer it does not go on; the reference does
        ended = len(said) if said[-1] in texts.vocabulary["ends"] else None
        check.tokens(answer.upto(ended), said)
    return {**check.checks(onnx), **read}


def rendered(tokenizer, messages: list[dict[str, str]]) -> str | None:
    """A dialogue by the folder's template in GenAI; None where it cannot render that."""
    try:
        return tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True)
    except Exception:  # whatever its template engine lacks
        return None
