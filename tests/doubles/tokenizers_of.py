"""Checkpoints of one layer whose tokenizer files say what few do: what each changes of the demo's."""

import json
from collections.abc import Callable
from pathlib import Path

import checkpoints

NAMED = [
    {"name": "default", "template": "{{ messages }}"},
    {"name": "tool use", "template": "{{ tools }}"},
]
PLAINLY = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
PLAIN = (
    "{{ strftime_now('%d %b %Y') }}{% for message in messages %}{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
)


def named_templates(tokenizer: dict, settings: dict, config: dict) -> None:
    settings["chat_template"] = NAMED


def no_default_template(tokenizer: dict, settings: dict, config: dict) -> None:
    settings["chat_template"] = NAMED[1:]


def bos_of_the_post_processor(tokenizer: dict, settings: dict, config: dict) -> None:
    settings["bos_token"] = None


def bos_as_an_object(tokenizer: dict, settings: dict, config: dict) -> None:
    settings["bos_token"] = {
        "__type": "AddedToken", "content": settings["bos_token"], "special": True,
        "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
    }  # fmt: skip


def another_end(tokenizer: dict, settings: dict, config: dict) -> None:
    """The post-processor ends a prompt with a token that is not eos: then eos is eot."""
    for step in tokenizer["post_processor"]["processors"]:
        if step["type"] == "TemplateProcessing":
            end = {"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}
            step["single"].append(end)
            step["special_tokens"]["<|end_of_text|>"] = {
                "id": "<|end_of_text|>", "ids": [1017], "tokens": ["<|end_of_text|>"],
            }  # fmt: skip


def wishes(tokenizer: dict, settings: dict, config: dict) -> None:
    settings |= {"add_bos_token": False, "add_eos_token": True, "cls_token": "<|eot_id|>"}
    config |= {"pad_token_id": 1019, "eot_token_id": 1018}


def code_llama(tokenizer: dict, settings: dict, config: dict) -> None:
    """Of 32016 tokens, in which number 32010 ends an infilling."""
    (last,) = [text for text, number in tokenizer["model"]["vocab"].items() if number == 1015]
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [one for one in merges if "".join(one) != last]
    del tokenizer["model"]["vocab"][last]
    tokenizer["model"]["vocab"]["\u2581<EOT>"] = 32010
    config["vocab_size"] = 32016


def qwen(tokenizer: dict, settings: dict, config: dict) -> None:
    """Letters and marks composed, each digit alone, merges kept, no bos, rows that are no tokens."""
    split, plain = tokenizer["pre_tokenizer"]["pretokenizers"]
    split["pattern"]["Regex"] = split["pattern"]["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")
    tokenizer["normalizer"] = {"type": "NFC"}
    tokenizer["model"]["ignore_merges"] = False
    tokenizer["post_processor"] = plain
    (end,) = [one for one in tokenizer["added_tokens"] if one["content"] == "<|end_of_text|>"]
    end["content"] = "<|endoftext|>"  # which transformers' class for it adds where there is none
    settings |= {"bos_token": None, "add_bos_token": False, "pad_token": "<|endoftext|>"}
    settings |= {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "errors": "replace",
    }
    settings["chat_template"] = settings["chat_template"].replace("{{- bos_token }}", "")
    config |= {"bos_token_id": 1017, "eos_token_id": 1020}


CHANGES: dict[str, Callable[[dict, dict, dict], None]] = {
    change.__name__.replace("_", " "): change
    for change in (
        named_templates, no_default_template, bos_of_the_post_processor, bos_as_an_object,
        another_end, wishes, code_llama, qwen,
    )
}  # fmt: skip
NAMES = (*CHANGES, "template files")
PRE = {"qwen": "qwen2"}  # else llama-bpe


def write(folder: Path, name: str) -> Path:
    if name == "qwen":
        checkpoints.variant(folder, "Qwen2, more rows than tokens")
    else:
        checkpoints.llama31(folder, num_hidden_layers=1)
    files = [folder / f"{stem}.json" for stem in ("tokenizer", "tokenizer_config", "config")]
    read = [json.loads(file.read_bytes()) for file in files]
    if name in CHANGES:
        CHANGES[name](*read)
    else:
        (folder / "chat_template.jinja").write_text(read[1].pop("chat_template"))
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/rag-2.jinja").write_text("{{ documents }}")
    for file, content in zip(files, read, strict=True):
        checkpoints.write_json(file, content)
    if name == "code llama":
        for file in folder.glob("model*"):
            file.unlink()
        checkpoints.write_weights(folder, read[2], "BF16", "BF16", shards=1)
    return folder


def as_qwen(folder: Path) -> None:
    """A checkpoint with the demo's tokenizer has Qwen's."""
    files = [folder / f"{stem}.json" for stem in ("tokenizer", "tokenizer_config", "config")]
    read = [json.loads(file.read_bytes()) for file in files]
    qwen(*read)
    for file, content in zip(files, read, strict=True):
        checkpoints.write_json(file, content)


def rewritten(folder: Path, pieces: list[tuple[str, float]], prefixed: bool = True) -> None:
    """tokenizer.json in place of a tokenizer.model, as transformers writes it; `pieces` with scores."""
    vocab = {text: number for number, (text, _) in enumerate(pieces)}
    merges = []
    for text, _ in sorted(pieces, key=lambda piece: -piece[1]):
        parts = [(text[:at], text[at:]) for at in range(1, len(text))]
        known = [pair for pair in parts if pair[0] in vocab and pair[1] in vocab]
        merges += sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    special = ("<unk>", "<s>", "</s>")
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    one = {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    steps = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    checkpoints.write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None,
        "added_tokens": [
            {"id": vocab[token], "content": token, "special": True, **PLAINLY} for token in special
        ],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace][not prefixed :]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text],
            "special_tokens": {"<s>": one},
        },
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab, "merges": [" ".join(pair) for pair in merges],
        },
    })  # fmt: skip
    settings = {
        f"{kind}_token": token for kind, token in zip(("unk", "bos", "eos"), special, strict=True)
    }
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": PLAIN}
    checkpoints.write_json(folder / "tokenizer_config.json", settings)
    for name in ("tokenizer.model", "added_tokens.json"):
        (folder / name).unlink()
