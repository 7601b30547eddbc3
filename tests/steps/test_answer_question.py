"""`ingot ask`: a form answers one question in its own runtime, as the demo was trained to."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from answer_question import at_most, once
from conftest import ROOT
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
        given = ("--artifact", tmp_path / artifact, f"--question={question}", "--tokens", tokens)
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


def test_an_answer_ends_with_the_context():
    assert at_most(Path("m.gguf"), 500, 40, 512) == 12 and at_most(Path("m.gguf"), 5, 40, 512) == 40
    with pytest.raises(Refused, match=r"has 512 tokens, expected fewer than 512, its context"):
        at_most(Path("m.gguf"), 512, 40, 512)


def test_a_text_begins_once():
    assert once([1, 1, 5, 5]) == [1, 5, 5] and once([1, 5, 5]) == [1, 5, 5] and once([]) == []


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
