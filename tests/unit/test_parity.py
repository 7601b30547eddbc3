"""Numbers of distributions, on small ones computed by hand, and texts checked against transformers'."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.formats.gguf import plan, quants
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.quantisations import ROWS
from ingot.formats.tensorrt.checkpoint import QUANTS
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.dtypes import TYPES
from ingot.parity import clock, divergence, hard_texts, limits, tokenizer_folder, trtllm_model
from ingot.parity.texts import Texts
from ingot.parity.values import Comparison

ARTIFACT = Path("artifacts/m.gguf")


def test_log_softmax_is_one_of_large_logits_too():
    found = divergence.log_softmax(np.array([[1000.0, 1000.0], [0.0, -1000.0]], np.float32))
    assert np.allclose(found, [[math.log(0.5)] * 2, [0.0, -1000.0]])


def test_the_numbers_of_two_known_distributions():
    p = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    q = np.log(np.array([[0.5, 0.5], [0.4, 0.6]], np.float32))
    total = divergence.Divergence()
    total.add(p, q, np.array([0, 0]))
    found = total.numbers()
    kl = 0.9 * math.log(0.9 / 0.4) + 0.1 * math.log(0.1 / 0.6)
    assert found["mean_kl"] == pytest.approx(kl / 2, rel=1e-3)
    assert found["largest_kl"] == pytest.approx(kl, rel=1e-3)
    assert found["same_top"] == 0.5
    assert found["rms_dp"] == pytest.approx(math.sqrt(0.5**2 / 2), rel=1e-3)
    assert found["perplexity"] == pytest.approx(
        math.exp(-(math.log(0.5) + math.log(0.4)) / 2), rel=1e-3
    )
    assert found["perplexity_reference"] == pytest.approx(1 / math.sqrt(0.45), rel=1e-3)


def test_rows_as_stored_are_compared_as_their_values_are(tmp_path):
    """Equal bits are equal; of others it is the value that counts: -0 is 0, the next value is refused."""
    bits = np.random.default_rng(0).integers(0x3F00, 0x4000, (700, 300), np.uint16)
    bits[3, 5] = 0
    bits.tofile(tmp_path / "w")
    source = Tensor("w", "BF16", bits.shape, tmp_path / "w", 0, bits.nbytes)

    def found(changed, kind="BF16"):
        rows = changed if kind == "BF16" else (changed.astype(np.uint32) << 16).view(np.float32)
        comparison = Comparison(ARTIFACT)
        comparison.tensor("w", kind, source, lambda first, last: rows[first:last])
        return comparison.counts

    same = {"tensors": 1, "tensors_equal": 1, "values": bits.size, "values_rounded": 0}
    same["largest_difference"] = 0
    assert found(bits) == found(bits, "F32") == same
    zero, wrong = bits.copy(), bits.copy()
    zero[3, 5], wrong[699, 299] = 0x8000, wrong[699, 299] + 1
    assert found(zero) == same
    for kind in ("BF16", "F32"):
        with pytest.raises(Refused, match="tensor w is not the checkpoint's"):
            found(wrong, kind)
    bits[2, 2] = 0x7FC1
    bits.tofile(tmp_path / "w")
    for kind in ("BF16", "F32"):
        with pytest.raises(Refused, match="tensor w is not the checkpoint's"):
            found(bits, kind)  # NaN is no value


def test_what_a_form_is_expected_to_lose_is_what_the_pages_say_of_the_demos():
    rows = re.findall(
        r"^\| `demo(?:\.(\w+))?\.(?:gguf|onnx|mlx|safetensors)` \| [^|]+ \| (\S+) \|",
        "".join((ROOT / f"docs/{one}.md").read_text() for one in ("measurements", "quantised")),
        re.M,
    )
    measured = {word: float(kl) for word, kl in rows if word}
    assert len(measured) > 20
    assert {word: limits.EXPECTED[word] for word in measured} == measured


def texts(**changes):
    found = {
        "strings": [("a", [1])], "lines": [("a a", [1])],
        "chats": [([{"role": "user", "content": "b"}], "<b>")],
        "vocabulary": {"tokens": ["a", "a", "b", " a"], "composes": False},
        "corpus": [[0, 1, 2], [0, 2, 1], [0, 1, 1]], "corpus_sha256": "0" * 64, "corpus_tokens": 9,
    }  # fmt: skip
    return Texts(**{**found, **changes})


@pytest.fixture
def scores(tmp_path):
    """Of a model that finds all three tokens as likely."""
    np.save(tmp_path / "scores.npy", np.full((6, 3), -math.log(3), np.float32))
    return tmp_path / "scores.npy"


def test_windows_are_a_sample_of_all_when_all_take_too_long(scores):
    asked = []

    def logits(ids):
        asked.append(ids)
        return np.zeros((len(ids), 3), np.float32)

    found = divergence.measure(ARTIFACT, texts(), scores, logits, most=2)
    assert asked == [[0, 1, 2], [0, 2, 1]] and (found["tokens"], found["corpus_tokens"]) == (4, 9)
    assert found["mean_kl"] == 0 and found["perplexity"] == pytest.approx(3, rel=1e-3)


def test_logits_that_are_not_finite_have_no_numbers(scores):
    with pytest.raises(Refused, match="logits are not finite over the corpus"):
        divergence.measure(ARTIFACT, texts(), scores, lambda ids: np.full((3, 3), np.nan))


def test_a_number_beyond_its_limit_is_refused_with_both():
    numbers = {"mean_kl": 0.02, "same_top": 0.8, "tokens": 7}
    divergence.held(ARTIFACT, numbers, {"mean_kl": 0.02, "same_top": 0.8})
    with pytest.raises(Refused, match=r"mean_kl is 0\.02 over 7 tokens, expected at most 0\.01"):
        divergence.held(ARTIFACT, numbers, {"mean_kl": 0.01})
    with pytest.raises(Refused, match=r"same_top is 0\.8 over 7 tokens, expected at least 0\.9"):
        divergence.held(ARTIFACT, numbers, {"same_top": 0.9})


def test_every_type_has_a_limit_and_a_users_own_comes_before_it():
    assert set(ROWS) <= set(limits.MEAN_KL)
    assert {*TYPES} - {"F32", "F16", "BF16", "MXFP4"} <= {*limits.ERROR}  # compared value by value
    assert limits.numbers("q4_k_m", {"mean_kl": 0.02, "same_top": 0.9}) == {
        "mean_kl": 0.02, "same_top": 0.9,
    }  # fmt: skip
    assert limits.pairs(["mean_kl=0.02"]) == {"mean_kl": 0.02}


def test_a_tokenizer_or_a_template_that_differs_is_refused_with_the_text():
    found = texts().checks(ARTIFACT, lambda text: [1], lambda messages: "<b>")
    assert found == {"texts_equal": 2, "chats_equal": 1}
    said = "'a' becomes \\[2\\] from token 0 on, expected \\[1\\] as by transformers"
    with pytest.raises(Refused, match=said):
        texts().checks(ARTIFACT, lambda text: [2], lambda messages: "<b>")
    with pytest.raises(Refused, match="a dialogue of 1 messages becomes 'b', expected '<b>'"):
        texts().checks(ARTIFACT, lambda text: [1], lambda messages: "b")


def test_texts_that_a_runtime_splits_otherwise_are_counted_if_they_are_the_same_letters():
    def ids(text):
        return [0] if text == "a a" else [1]

    def other(text):
        return [2] if text == "a a" else [1]

    def may_differ(text):
        return text == "a a"

    found = texts().checks(ARTIFACT, ids, None, may_differ)
    assert found == {"texts_equal": 1, "texts_split_otherwise_by_its_runtime": 1, "chats_equal": 0}
    for wrong, may in ((ids, lambda _: False), (other, may_differ)):
        with pytest.raises(Refused, match="'a a' becomes"):
            texts().checks(ARTIFACT, wrong, None, may)


def test_letters_and_marks_that_only_the_models_tokenizer_composes_are_counted():
    apart, text = ["e", "\u00cc\u0123"], "e\u0301"  # by letters that are bytes
    known = {"tokens": [*apart, "\u00c3\u00a9", "b"], "composes": True}
    said = texts(strings=[[text, [2]]], lines=[], vocabulary=known)
    found = said.checks(ARTIFACT, lambda _: [0, 1], None)
    assert found == {"texts_equal": 0, "texts_split_otherwise_by_its_runtime": 1, "chats_equal": 0}
    strict = texts(strings=[[text, [2]]], lines=[], vocabulary={**known, "composes": False})
    plain = texts(strings=[["\u00e9", [2]]], lines=[], vocabulary=known)
    for one, ids in ((said, [3]), (strict, [0, 1]), (plain, [0, 1])):
        with pytest.raises(Refused, match="becomes"):
            one.checks(ARTIFACT, lambda _, ids=ids: ids, None)


def test_a_folders_own_tokenizer_may_cut_few_texts_otherwise():
    many = texts(strings=[[f"text {n}", [n]] for n in range(100)], lines=[])
    assert many.nearly(ARTIFACT, lambda text: [max(int(text[5:]), 3)])["texts_equal"] == 97
    with pytest.raises(Refused, match="4 texts differ: 'text 0' becomes"):
        many.nearly(ARTIFACT, lambda text: [max(int(text[5:]), 4)])


def test_the_texts_hold_what_tokenizers_differ_in():
    assert len(set(hard_texts.STRINGS)) == len(hard_texts.STRINGS) >= 50
    assert len(hard_texts.DIALOGUES) == 20
    assert all(one["role"] for messages in hard_texts.DIALOGUES for one in messages)


def test_activations_of_every_quantised_checkpoint_can_be_rounded():
    dtypes = {
        quant.dtype for quant in QUANTS.values() if "activation_scaling_factor" in quant.scales
    }
    assert dtypes == set(trtllm_model.FULL)


def test_the_header_of_a_quantised_file_says_its_rows_type_last():
    pairs = [KV("general.file_type", "u32", 1), KV("general.name", "str", "M")]
    for name, row in ROWS.items():
        found = quants.header(pairs, name, None)
        assert [kv.key for kv in found[1:]] == [
            "general.quantization_version", "general.file_type",
        ]  # fmt: skip
        assert found[-1].value == row.ftype


def test_the_catalogue_takes_each_quantisation_that_has_a_row_and_no_other():
    catalogue = schema.read(ROOT / schema.FILE)
    catalogue["models"]["demo"]["quants"] = [*ROWS]
    schema.complete(catalogue, ROOT)
    catalogue["models"]["demo"]["quants"] = ["q4_k_x"]
    with pytest.raises(
        Refused, match=r"models\.demo\.quants\.0: 'q4_k_x' is not one of .*'q4_k_m'"
    ):
        schema.complete(catalogue, ROOT)


def test_a_bundles_template_is_rendered_as_transformers_does(tmp_path):
    template = "{% for m in messages %}{{ m['content'] | trim }}{{ eos_token }}{% endfor %}\n"
    settings = {"chat_template": template, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    messages = [{"role": "user", "content": " hi "}]
    assert tokenizer_folder.chat_of(tmp_path)(messages) == "hi</s>"
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    assert tokenizer_folder.chat_of(tmp_path)(messages) == clock.strftime_now("31 Jul 2024")
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(Refused, match=r"chat_template: .*raise_exception"):
        tokenizer_folder.chat_of(tmp_path)(messages)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizer_folder.chat_of(tmp_path) is None


def test_libllamas_plan_is_read_off_its_log():
    """Of a tensor that keeps its type it names none in brackets."""
    head = "[   1/  40] output.weight           - [   512,  1024,     1,     1], type =    f32, "
    changed, kept = "size =     2.00 MiB ->     0.41 MiB (q6_K)", "size =    0.002 MiB"
    for rest, found in ((changed, "q6_K"), (kept, None)):
        match = plan.PLANNED.match(head + rest)
        assert (match[1], match[2], match[3]) == ("output.weight", "f32", found)


def test_limits_that_are_none_are_refused_in_one_line():
    for word in ("mean_kl=x", "kl=1", "mean_kl"):
        with pytest.raises(
            Refused, match=f"--limit: {word}, expected name=value of one of mean_kl"
        ):
            limits.pairs([word])


def test_scores_of_other_texts_are_refused(scores):
    with pytest.raises(Refused, match="6 tokens, expected 2 of the texts; score them again"):
        divergence.measure(
            ARTIFACT, texts(corpus=[[0, 1, 2]]), scores, lambda ids: np.zeros((3, 3))
        )
