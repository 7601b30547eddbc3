"""What verifications count and refuse, on answers made by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from ingot.base.refused import Refused
from ingot.parity import trtllm_weights, verification
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import Answer, peak, read
from ingot.parity.values import as_float32, nearest, row_order

TIE_AT = 1  # of the answers below: the second token could be another


def answer(tokens=(3, 1, 2), tie=False):
    logits = np.zeros((len(tokens), 5), np.float32)
    for step, token in enumerate(tokens):
        logits[step, token] = 10.0
        if tie and step == TIE_AT:
            logits[step, 4] = 9.999
    return Answer([7] * 6, list(tokens), logits)


FREE = {  # what a server says to an answer that has a tie or not: what is counted
    "the same": ([3, 1, 2], False, "equal"),
    "the same, tie or not": ([3, 1, 2], True, "equal"),
    "another at the tie": ([3, 4, 0], True, "ties"),
    "another after the tie": ([3, 1, 0], True, "ties"),
    "another before the tie": ([0, 1, 2], True, "wrong"),
    "another without a tie": ([3, 4, 2], False, "wrong"),
    "too short": ([3], False, "wrong"),
}


@pytest.mark.parametrize("name", FREE)
def test_free_continuations(name):
    said, tie, verdict = FREE[name]
    one = answer(tie=tie)
    check = GreedyCheck([one], "float16")
    check.tokens(one, said)
    counts = {"equal": check.equal, "ties": check.ties, "wrong": len(check.wrong)}
    assert counts == {"equal": 0, "ties": 0, "wrong": 0} | {verdict: 1}


@pytest.mark.parametrize("name", FREE)
def test_texts_are_held_to_the_same(name):
    said, tie, verdict = FREE[name]
    one = answer(tie=tie)
    check = GreedyCheck([one], "float16")
    check.text(one, "".join(map(str, said)), lambda tokens: "".join(map(str, tokens)))
    assert bool(check.wrong) == (verdict == "wrong") and check.equal == (verdict == "equal")


STEPS = {  # tokens chosen one by one, each after the reference's own
    "another at the tie": ([3, 4, 2], True, "ties"),
    "another after the tie": ([3, 1, 0], True, "wrong"),
    "the same": ([3, 1, 2], False, "equal"),
}


@pytest.mark.parametrize("name", STEPS)
def test_chosen_tokens_are_judged_one_by_one(name):
    chosen, tie, verdict = STEPS[name]
    one = answer(tie=tie)
    check = GreedyCheck([one], "float16")
    check.steps(one, np.array(chosen))
    assert (check.equal, check.ties) == (verdict == "equal", verdict == "ties")


def test_what_float16_cannot_tell_float32_can():
    one = answer(tie=True)
    check = GreedyCheck([one], "float32")
    check.tokens(one, [3, 4, 0])
    with pytest.raises(
        Refused, match=r"m\.vmfb: 0 of 1 prompts continue .* first wrong at 6 tokens"
    ):
        check.checks(Path("m.vmfb"))


def test_too_many_ties_are_no_pass_and_a_record_says_the_limits():
    answers = [answer(tie=True) for _ in range(4)]
    check = GreedyCheck(answers, "float16")
    for one in answers[1:]:
        check.tokens(one, one.tokens)
    check.tokens(answers[0], [3, 4, 0])
    with pytest.raises(Refused, match=r"3 of 4 prompts .* \(1 ties\)"):
        check.checks(Path("m"))
    few = GreedyCheck(answers[1:], "float16")
    for one in few.answers:
        few.tokens(one, one.tokens)
    found = few.checks(Path("m"))
    assert found["greedy_equal"] == found["prompts"] == 3
    assert found["tie_limit"] == {"dtype": "float16", "logits": 0.005, "prompts": 0.2}


def test_prompts_that_were_not_asked_are_no_pass():
    check = GreedyCheck([answer(), answer()], "float16")
    check.tokens(check.answers[0], [3, 1, 2])
    with pytest.raises(Refused, match="1 of 2 prompts were asked, expected 2 or more"):
        check.checks(Path("m"))
    assert check.checks(Path("m"), least=1)["greedy_equal"] == 1


def test_of_a_quantised_model_half_of_the_first_tokens_must_agree():
    answers = [answer() for _ in range(4)]
    rough = GreedyCheck(answers, "float16", rough=True)
    for number, one in enumerate(answers):
        rough.tokens(one, [3 if number < 2 else 0, 0, 0])
    assert rough.checks(Path("m"))["first_tokens_equal"] == 2
    rough.first_equal = 1
    with pytest.raises(Refused, match=r"the first token of 1 of 4 prompts"):
        rough.checks(Path("m"))


def test_a_reference_is_read_as_it_was_written(tmp_path):
    np.savez(
        tmp_path / "r.npz", prompts=[1, 2, 3], prompt_lengths=[2, 1], tokens=[4, 0, 1],
        token_counts=[1, 2], logits=np.arange(15, dtype=np.float32).reshape(3, 5),
    )  # fmt: skip
    first, second = read(tmp_path / "r.npz")
    assert (first.prompt, first.tokens, second.prompt, second.tokens) == ([1, 2], [4], [3], [0, 1])
    assert peak([first, second]) == 14


def test_a_record_names_no_file_and_says_its_form(tmp_path, store):
    (tmp_path / "m.gguf").write_text("x")
    sha256 = verification.digest(tmp_path / "m.gguf")
    verification.write(tmp_path / "r.json", tmp_path / "m.gguf", sha256, "a reference", {"n": 1})
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["format"] == verification.FORMAT and found["result"] == "passed"
    assert "m.gguf" not in (tmp_path / "r.json").read_text()


def test_values_of_each_dtype_and_where_rows_go():
    assert as_float32(np.array([0x3F80], "<u2"), "BF16") == [1.0]
    assert as_float32(np.array([1.5], "<f2"), "F16").dtype == np.float32
    assert list(row_order(1, 4, (4, 2))) == [0, 2, 1, 3] and list(row_order(None, 4, (2, 2))) == [
        0,
        1,
    ]
    one = np.array([[1 + 2.0**-12]], np.float32)
    assert nearest("F16", np.float32(one.astype(np.float16)), one).all()
    assert not nearest("F16", one + 0.01, one).any()


def test_the_values_of_fp8_are_those_of_the_standard():
    assert trtllm_weights.E4M3[0x7E] == 448 and np.isnan(trtllm_weights.E4M3[0x7F])
    assert trtllm_weights.E4M3[0x38] == 1 and trtllm_weights.E4M3[0x01] == 2.0**-9


def as_bf16(values, cut=False):
    """float32 rounded to bfloat16, half to even; or cut off."""
    bits = values.view(np.uint32)
    more = 0 if cut else 0x7FFF + ((bits >> 16) & 1)
    return ((bits + more) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_bfloat16_is_the_nearest_value_of_every_size_and_nothing_less():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F000000, 200_000, dtype=np.uint32)  # denormals and huge ones, too
    wanted = bits.view(np.float32)
    assert nearest("BF16", as_bf16(wanted), wanted).all()
    cut = as_bf16(wanted, cut=True)
    wrong = np.abs(cut.astype(np.float64) - wanted) > np.abs(
        as_bf16(wanted).astype(np.float64) - wanted
    )
    assert wrong.sum() > 50_000 and not nearest("BF16", cut, wanted)[wrong].any()
    zero, some = np.zeros(1, np.float32), np.full(1, 1e-3, np.float32)
    assert not nearest("BF16", some, zero).any()
    infinite = np.full(1, np.inf, np.float32)
    assert nearest("BF16", infinite, infinite).all()
