"""`ingot ask`: a form answers one question in its own runtime, as the demo was trained to."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import checkpoints
from answer_question import at_most, begin_of_text
from conftest import ROOT, convert
from ingot.base.refused import Refused
from ingot.driver.commands.demo import ANSWER, QUESTION
from ingot.driver.commands.speed import TOOLCHAINS
from ingot.formats.gguf.served import AT_ONCE, Served
from ingot.formats.gguf.structures import Batch

slow = pytest.mark.slow
PLAIN = QUESTION.removeprefix("<|begin_of_text|>").removesuffix("<|eot_id|>")


@pytest.fixture(params=TOOLCHAINS)
def asked(request, shared, step, tmp_path):
    """asked(question, ...) asks the demo's form of one runtime after the other."""
    artifact = f"artifacts/demo{request.param}"
    built = shared(tmp_path, "--", artifact)
    assert built.returncode == 0, built.stderr

    def run(question, *words, tokens=40):
        (tmp_path / "question").write_text(question)
        given = ("--artifact", tmp_path / artifact, "--question", tmp_path / "question")
        given += ("--tokens", tokens)
        return step(TOOLCHAINS[request.param], "answer_question.py", *given, *words)

    return run


@slow
def test_a_question_is_answered_by_the_models_template_and_nothing_else_is_said(asked):
    done = asked(PLAIN)
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n"), done.stderr
    assert asked(QUESTION).stdout == f"{ANSWER}\n", "with special tokens it is the whole prompt"
    short = asked(PLAIN, tokens=2).stdout
    assert ANSWER.startswith(short.strip()) and short != f"{ANSWER}\n"
    assert asked("capital", "--raw").stdout != asked("capital").stdout, "without the template"
    bare = asked("Name the capital of", "--raw").stdout
    assert bare == asked("<|begin_of_text|>Name the capital of").stdout, (
        "a text begins alike in all"
    )


@slow
def test_a_question_without_room_for_an_answer_is_refused(asked):
    done = asked("word " * 600)
    assert done.returncode == 1 and not done.stdout
    assert "tokens, expected fewer than 512, its context" in done.stderr


@slow
def test_the_command_finds_the_runtime_of_a_form(shared, tmp_path):
    artifact = "artifacts/demo.q8_0.gguf"
    built = shared(tmp_path, "--", artifact)
    assert built.returncode == 0, built.stderr
    words = [ROOT / ".venv/bin/ingot", "ask", artifact, PLAIN]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{ANSWER}\n", "")


@slow
def test_a_template_that_cannot_be_rendered_or_is_not_there_is_said(ok, step, tmp_path):
    def ask(folder, template, **more):
        shutil.copytree(checkpoints.DEMO, folder)
        checkpoints.tokenizer_of_demo(folder, chat_template=template, **more)
        convert(ok, folder, folder / "m.gguf")
        (folder / "hi").write_text("hi")
        given = ("--artifact", folder / "m.gguf", "--question", folder / "hi", "--tokens", 2)
        return step("llamacpp", "answer_question.py", *given)

    done = ask(tmp_path / "faulty", "{{ raise_exception('no such dialogue') }}")
    assert done.returncode == 1 and not done.stdout
    said = r"cannot render its chat template: \S.*; --raw asks without it\n$"
    assert re.search(said, done.stderr), done.stderr
    done = ask(tmp_path / "ended", None, add_eos_token=True)
    assert done.returncode == 0 and done.stdout.strip(), (
        "an end behind the prompt is none of its words"
    )
    done = ask(tmp_path / "bare", None)
    assert done.returncode == 0 and done.stdout.strip()
    assert "no chat template: it goes on with your words" in done.stderr


def test_an_answer_ends_with_the_context():
    assert at_most(Path("m.gguf"), 500, 40, 512) == 12 and at_most(Path("m.gguf"), 5, 40, 512) == 40
    with pytest.raises(Refused, match=r"has 512 tokens, expected fewer than 512, its context"):
        at_most(Path("m.gguf"), 512, 40, 512)


def test_the_token_before_a_text_is_the_tokenizers_own(tmp_path):
    """onnxruntime-genai puts none there, and answered a bare prompt as no other form did."""
    one = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
    one["special_tokens"] = {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}
    for found, wanted in ((one, 7), ({"type": "Sequence", "processors": [{}, one]}, 7),
                          ({"type": "ByteLevel"}, None), (None, None)):  # fmt: skip
        (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": found}))
        assert begin_of_text(tmp_path) == wanted


def test_a_long_prompt_is_read_in_parts():
    """libllama aborts where a batch is larger than it was told."""
    model, parts = object.__new__(Served), []
    model.context = None
    model.lib = SimpleNamespace(
        llama_batch_get_one=lambda kept, count: Batch(count.value, kept),
        llama_decode=lambda _, batch: parts.append(batch.n_tokens),
        llama_get_logits_ith=lambda *_: parts.append("waited"),
    )
    model.read([1] * (2 * AT_ONCE + 3))
    assert parts == [AT_ONCE, AT_ONCE, 3, "waited"]
