"""Ask a model once, in the runtime that serves the artifact, on this machine's CPU.

Runs in envs/llamacpp, envs/genai or envs/openvino, by the artifact.  Each next token is the likeliest one;
what they say is printed as they come.
"""

import codecs
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from ingot.base.fields import read_json
from ingot.base.machine import cores
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.onnx.folder import GENAI

Say = Callable[[str], None]


def answer_question(
    artifact: Annotated[Path, "a .gguf, or a folder of .onnx or .openvino"],
    question: Annotated[Path, "a file of it; with special tokens in it, it is the whole prompt"],
    tokens: Annotated[int, "that the answer has at most"],
    raw: Annotated[bool, "the question is the whole prompt in any case"] = False,
) -> None:
    runtimes = {".gguf": by_libllama, ".onnx": by_genai, ".openvino": by_openvino}
    if artifact.suffix not in runtimes:
        raise Refused(f"{artifact}: no runtime here, expected {', '.join(runtimes)}")
    with only_answers() as say:
        text = question.read_text(encoding="utf-8")
        templated = runtimes[artifact.suffix](artifact, text, tokens, raw, say)
        say("\n")
    if not (templated or raw):
        print(f"{artifact}: no chat template: it goes on with your words", file=sys.stderr)


@contextmanager
def only_answers() -> Iterator[Say]:
    """What is said goes to stdout; what the runtimes say of themselves meanwhile, to nobody."""
    sys.stdout.flush()
    kept, nobody = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nobody, number)
    ours, sys.stderr = sys.stderr, os.fdopen(os.dup(kept[1]), "w")  # why a library gives up
    try:
        yield lambda text: write(kept[0], text.encode(errors="replace"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stderr = ours
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)


def write(place: int, data: bytes) -> None:
    while data:
        data = data[os.write(place, data) :]


def at_most(artifact: Path, question: int, tokens: int, context: int) -> int:
    """How many tokens the answer may have.  Refused: a question that leaves no room for one."""
    if question >= context:
        raise Refused(
            f"{artifact}: the question has {question} tokens, expected fewer than {context}, its context"
        )
    return min(tokens, context - question)


def by_libllama(gguf: Path, question: str, tokens: int, raw: bool, say: Say) -> bool:
    """Says the answer; gives whether the file has a chat template, as the others do."""
    from ingot.formats.gguf.served import Served

    model = Served(gguf)
    whole = raw or any(map(model.is_special, model.ids(question, alone=True)))
    chat, text = model.has_template and not whole, question
    if chat:
        try:
            text = model.chat([{"role": "user", "content": question}], int(time.time()))
        except Refused as reason:
            raise Refused(f"{reason}; --raw asks without it") from None
    ids = model.ids(text, alone=True)  # some tokenizers put an end behind it, too
    if ids[: len(model.start)] != model.start:  # a template may give it
        ids = [*model.start, *ids]
    most = at_most(gguf, len(ids), tokens, model.trained_context)
    model.begin(len(ids) + most, cores())
    reader = codecs.getincrementaldecoder("utf-8")("replace")  # a character may have several tokens
    with model:
        for _ in range(most):
            model.read(ids)
            ids = [model.likeliest()]
            if model.ends(ids[0]):
                break
            say(reader.decode(model.bytes_of(ids[0])))
    say(reader.decode(b"", final=True))
    return model.has_template


def by_genai(onnx: Path, question: str, tokens: int, raw: bool, say: Say) -> bool:
    import numpy as np
    import onnxruntime_genai

    from ingot.parity.in_genai import greedy, rendered

    model = onnxruntime_genai.Model(str(onnx))
    tokenizer = onnxruntime_genai.Tokenizer(model)
    chat = is_dialogue(onnx, question, raw)
    text = rendered(tokenizer, [{"role": "user", "content": question}]) if chat else question
    if text is None:
        raise Refused(
            f"{onnx}: onnxruntime-genai cannot render its chat template; --raw asks without it"
        )
    ids, first = tokenizer.encode(text).tolist(), begin_of_text(onnx)
    if not chat and first is not None and ids[:1] != [first]:  # the others' tokenizers put it there
        ids = [first, *ids]
    most = at_most(onnx, len(ids), tokens, read_json(onnx / GENAI)["model"]["context_length"])
    generator = greedy(model, len(ids) + most)
    generator.append_tokens(np.array(ids, np.int32))
    stream, ends = tokenizer.create_stream(), {*tokenizer.eos_token_ids}
    while not generator.is_done():
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if token in ends:
            break
        say(stream.decode(token))
    return has_template(onnx)


def by_openvino(folder: Path, question: str, tokens: int, raw: bool, say: Say) -> bool:
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(str(folder), "CPU")
    chat = is_dialogue(folder, question, raw)
    config, tokenizer = read_json(folder / "config.json"), pipeline.get_tokenizer()
    context = config.get("text_config", config).get("max_position_embeddings", 1 << 30)
    text = question
    if chat:
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    count = tokenizer.encode(text, add_special_tokens=not chat).input_ids.shape[1]
    pipeline.generate(
        question, max_new_tokens=at_most(folder, count, tokens, context), do_sample=False,
        apply_chat_template=chat, streamer=say,
    )  # fmt: skip
    return has_template(folder)


def is_dialogue(folder: Path, question: str, raw: bool) -> bool:
    """Is the question put into the folder's chat template?"""
    tokens = read_json(folder / "tokenizer.json").get("added_tokens", [])
    whole = raw or any(one["content"] in question for one in tokens if one["special"])
    return not whole and has_template(folder)


def has_template(folder: Path) -> bool:
    known = read_json(folder / "tokenizer_config.json").get("chat_template")
    return bool(known) or (folder / "chat_template.jinja").is_file()


def begin_of_text(folder: Path) -> int | None:
    """The token that its tokenizer.json puts before a text, if any."""
    said = read_json(folder / "tokenizer.json").get("post_processor") or {}
    for one in said.get("processors", [said]):  # of a Sequence, each
        first = (one.get("single") or [{}])[0].get("SpecialToken", {}).get("id")
        if first in (known := one.get("special_tokens", {})):
            return known[first]["ids"][0]
    return None


if __name__ == "__main__":
    step(answer_question)
