"""What a tokenizer's files become in GGUF, where llama.cpp's way is not the only one."""

import json

import pytest

import checkpoints
from ingot.base.refused import Refused
from ingot.formats.gguf import special, templates, vocabulary
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import read_config


@pytest.fixture
def folder(tmp_path):
    return checkpoints.llama31(tmp_path / "checkpoint", num_hidden_layers=1)


def edit(path, **changes):
    checkpoints.write_json(path, {**json.loads(path.read_bytes()), **changes})


def pairs(folder, pre="llama-bpe"):
    found = vocabulary.vocabulary(Checkpoint([folder]), read_config(folder / "config.json"), pre)
    return {kv.key.removeprefix("tokenizer."): kv.value for kv in found}


def test_minus_one_says_that_there_is_no_such_token(folder):
    edit(folder / "tokenizer_config.json", pad_token=None)
    edit(folder / "config.json", pad_token_id=-1)
    assert "ggml.padding_token_id" not in pairs(folder)


def test_names_of_templates_are_listed_in_an_order_that_stays(folder):
    named = [{"name": name, "template": name} for name in ("tool", "rag", "default")]
    edit(folder / "tokenizer_config.json", chat_template=named)
    found = {key: value for key, value in pairs(folder).items() if "template" in key}
    assert found == {
        "chat_template.tool": "tool", "chat_template.rag": "rag",
        "chat_templates": ["rag", "tool"], "chat_template": "default",
    }  # fmt: skip
    assert templates.templates(Checkpoint([folder]), {"chat_template": []}) == []


def test_a_template_of_a_folder_of_its_own_is_part_of_a_checkpoint(folder):
    place = folder / "additional_chat_templates"
    place.mkdir()
    (place / "rag.jinja").write_text("{{ documents }}")
    given = Checkpoint([folder / "config.json", place / "rag.jinja"])
    assert sorted(given.files) == ["additional_chat_templates/rag.jinja", "config.json"]
    with given.as_folder() as copy:
        assert (copy / "additional_chat_templates/rag.jinja").read_text() == "{{ documents }}"


def test_an_added_token_behind_a_gap_is_refused(folder):
    """tokenizers gives it the next free id, so that its row of the embedding would be another's."""
    path = folder / "tokenizer.json"
    added = json.loads(path.read_bytes())["added_tokens"]
    for wrong in (added[-1]["id"] + 5, 3):
        edit(path, added_tokens=[*added, {"id": wrong, "content": "<new>", "special": True}])
        with pytest.raises(Refused, match=rf"'<new>' has id {wrong}, expected {len(added) + 1016}"):
            pairs(folder)
    edit(path, added_tokens=[*added, {"id": added[-1]["id"] + 1, "content": "<new>"}])
    assert pairs(folder)["ggml.tokens"][added[-1]["id"] + 1] == "<new>"


def test_the_end_of_an_infilling_is_named_only_where_it_is_that(folder):
    edit(folder / "config.json", vocab_size=32016)
    assert "ggml.eot_token_id" not in pairs(folder)  # number 32010 is no <EOT>


def test_a_separator_stands_for_an_end_that_has_no_name(folder):
    tokenizer = {"added_tokens": [{"id": 5, "content": "<sep>"}]}
    found = special.tokens(Checkpoint([folder]), tokenizer, {"sep_token": "<sep>"}, None)
    assert {kv.key: kv.value for kv in found}["tokenizer.ggml.eos_token_id"] == 5


def test_scores_of_a_rewritten_sentencepiece_model_follow_its_merges(folder):
    vocab = ["<unk>", "<s>", "<0x0A>", "a", "b", "ab", "aba", "never"]
    edit(
        folder / "tokenizer.json",
        model={
            "type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
            "vocab": {text: number for number, text in enumerate(vocab)},
            "merges": ["a b", ["ab", "a"], ["a", "ba"]],
        },
        added_tokens=[
            {"id": n, "content": text, "special": True} for n, text in enumerate(vocab[:2])
        ],
    )  # fmt: skip
    with pytest.raises(Refused, match=r"tokenizer\.json with byte fallback, but pre_tokenizer"):
        pairs(folder)
    found = pairs(folder, "default")
    assert found["ggml.model"] == "llama" and found["ggml.tokens"][8] == "[PAD8]"
    assert found["ggml.token_type"][:9] == [2, 3, 6, 1, 1, 1, 1, 1, 5]
    assert found["ggml.scores"][3:8] == [-1000.0, -1000.0, 0.0, -1.0, -1000.0]
