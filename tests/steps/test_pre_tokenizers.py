"""Every pre-tokenizer that libllama knows, beside the tokenizers library and our description of it.

A vocabulary learnt over the hard texts as they stand, without any split, has tokens across every boundary:
texts that are split otherwise become other tokens.
"""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

import checkpoints
from conftest import ROOT, once
from ingot.base.refused import Refused
from ingot.formats.gguf import pre_tokenizers
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity.hard_texts import STRINGS

KNOWN = {**pre_tokenizers.TAKEN, **pre_tokenizers.OTHERS}
ALIKE = (  # in libllama: one pattern, several names
    {"llama-bpe", "llama3", "falcon3", "pixtral", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"},
    {"gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "phi-2", "modern-bert", "exaone4"},
    {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
    {"qwen2", "stablelm2", "hunyuan", "solar-open", "grok-2", "bailingmoe", "megrez"},
    {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"}, {"gpt-4o", "llama4", "minimax-m2"},
    {"bloom", "poro-chat", "gpt3-finnish"}, {"tiny_aya", "cohere2moe"}, {"tekken"}, {"jais-2"},
    {"minicpm5"}, {"deepseek-llm"}, {"deepseek-coder"}, {"falcon"}, {"qwen35"}, {"viking"}, {"chameleon"},
    {"granite-embed-multi-97m"}, {"kimi-k2"}, {"superbpe"}, {"seed-coder"}, {"ufakzeka"}, {"afmoe"},
    {"laguna"}, {"gemma4", "sarvam-moe"},  # two that merge characters, not bytes
    {"exaone-moe"}, {"spark2_5"}, {"youtu"},
)  # fmt: skip

LEARN = """
import json, sys
from tokenizers import Tokenizer, pre_tokenizers, trainers
texts, splits, whole, out = json.load(open(sys.argv[1]))
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
model = {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": whole}
tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "pre_tokenizer": splits, "model": model}))
trainer = trainers.BpeTrainer(
    vocab_size=8000, min_frequency=1, initial_alphabet=alphabet, show_progress=False
)
tokenizer.train_from_iterator(texts, trainer)
tokenizer.save(out)
"""
ENCODE = """
import json, sys
from tokenizers import Tokenizer
folder, texts = sys.argv[1], json.load(open(sys.argv[2]))
for name in sys.argv[3:]:
    tokenizer = Tokenizer.from_file(f"{folder}/{name}.tokenizer.json")
    found = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    json.dump(found, open(f"{folder}/{name}.theirs.json", "w"))
"""
ASK = f"""
import ctypes, json, sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from gguf import GGUFWriter
from ingot.formats.gguf.libllama import library
folder, texts = sys.argv[1], json.load(open(sys.argv[2]))
lib = library()
for name in sys.argv[3:]:
    model = json.load(open(f"{{folder}}/{{name}}.tokenizer.json"))["model"]
    path = f"{{folder}}/{{name}}.gguf"
    out = GGUFWriter(path, "llama")
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(name)
    out.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    out.add_token_types([1] * len(model["vocab"]))
    out.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in model["merges"]])
    out.add_add_bos_token(False)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    parameters = lib.llama_model_default_params()
    parameters.vocab_only = True
    loaded = ctypes.c_void_p(lib.llama_model_load_from_file(path.encode(), parameters))
    vocab, found = ctypes.c_void_p(lib.llama_model_get_vocab(loaded)), []
    for text in texts:
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = lib.llama_tokenize(
            vocab, data, len(data), ids, len(ids), ctypes.c_bool(False), ctypes.c_bool(False)
        )
        found.append(ids[:count])
    json.dump(found, open(f"{{folder}}/{{name}}.ours.json", "w"))
"""


def run(python, source, *words):
    done = subprocess.run(
        [str(word) for word in (python, "-c", source, *words)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def description(steps):
    """A tokenizer.json's pre_tokenizer, as the library writes it."""
    plain = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    special = {
        pre_tokenizers.PLAIN: plain,
        pre_tokenizers.GPT2: plain | {"use_regex": True},
        pre_tokenizers.DIGITS: {"type": "Digits", "individual_digits": True},
    }
    found = [
        special.get(one)
        or {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in steps
    ]
    return {"type": "Sequence", "pretokenizers": found} if len(found) > 1 else found[0]


@pytest.fixture
def learnt(python, tmp_path_factory):
    """A folder with a tokenizer.json of the hard texts by every name, and what both make of them."""
    with once(tmp_path_factory, "pre_tokenizers") as (place, done):
        if not done:
            place.mkdir(exist_ok=True)
            (place / "texts.json").write_text(json.dumps(STRINGS))
            whole = place / "whole.json"
            (place / "asked.json").write_text(
                json.dumps([STRINGS, description([pre_tokenizers.PLAIN]), True, str(whole)])
            )
            run(python("transformers"), LEARN, place / "asked.json")
            names = sorted({*KNOWN, *(name for alike in ALIKE for name in alike)})
            for name in names:
                tokenizer = json.loads(whole.read_bytes())
                tokenizer["pre_tokenizer"] = description(KNOWN.get(name, (pre_tokenizers.PLAIN,)))
                (place / f"{name}.tokenizer.json").write_text(json.dumps(tokenizer))
            run(python("transformers"), ENCODE, place, place / "texts.json", *KNOWN)
            run(python("llamacpp"), ASK, place, place / "texts.json", *names)
    return place


def ids(place, name, whose):
    return json.loads((place / f"{name}.{whose}.json").read_bytes())


@pytest.mark.slow
def test_the_hard_texts_tell_every_pre_tokenizer_of_libllama_from_every_other(learnt):
    behaviours = {}
    for number, alike in enumerate(ALIKE):
        for name in alike:
            behaviours.setdefault(json.dumps(ids(learnt, name, "ours")), set()).add((number, name))
    mixed = [names for names in behaviours.values() if len({number for number, _ in names}) > 1]
    assert not mixed
    assert len(behaviours) == len(ALIKE), "names that are alike differ"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_our_description_of_each_splits_as_libllama_does(name, learnt):
    for text, theirs, ours in zip(
        STRINGS, ids(learnt, name, "theirs"), ids(learnt, name, "ours"), strict=True
    ):
        assert ours == theirs or pre_tokenizers.differs_in_libllama(name, text), text


@pytest.mark.parametrize("name", sorted(pre_tokenizers.OTHERS))
def test_a_checkpoint_that_splits_otherwise_is_refused_by_that_name(name, tmp_path):
    path = checkpoints.llama31(tmp_path / "m", num_hidden_layers=1) / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    tokenizer["pre_tokenizer"] = description(KNOWN[name])
    with pytest.raises(Refused, match=f"splits texts as {re.escape(name)}, expected llama-bpe"):
        pre_tokenizers.hold(path, tokenizer, "llama-bpe")


@pytest.mark.parametrize("change, said", [
    (lambda t: t.update(normalizer={"type": "NFC"}), "splits texts as normalizer {\"type\": \"NFC\"} then"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"), "as pre_tokenizer {"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(invert=True), "as pre_tokenizer {"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True), "pre_tokenizer {"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"][1].update(use_regex=True), "bytes, split as GPT-2"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "Digits", "individual_digits": True}),
     "as digits, each alone then"),
    (lambda t: t["pre_tokenizer"]["pretokenizers"].reverse(), "as bytes then"),
    (lambda t: t.update(pre_tokenizer=None), "as one word"),
    (lambda t: t["model"].update(ignore_merges=False), "splits texts as dbrx, expected llama-bpe"),
])  # fmt: skip
def test_the_whole_description_is_compared(change, said, tmp_path):
    path = checkpoints.llama31(tmp_path / "m", num_hidden_layers=1) / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    pre_tokenizers.hold(path, tokenizer, "llama-bpe")
    change(tokenizer)
    with pytest.raises(Refused, match=re.escape(said)):
        pre_tokenizers.hold(path, tokenizer, "llama-bpe")


def test_the_makers_of_gguf_ask_for_the_whole_description(tmp_path):
    from ingot.formats.gguf.vocabulary import vocabulary
    from ingot.model.config import read_config

    folder = checkpoints.llama31(tmp_path / "m", num_hidden_layers=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    tokenizer["pre_tokenizer"] = description(KNOWN["minicpm5"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(Refused, match="splits texts as minicpm5"):
        vocabulary(Checkpoint([folder]), read_config(folder / "config.json"), "llama-bpe")


def test_a_vocabulary_that_merges_digits_is_none_of_deepseeks(tmp_path):
    path = checkpoints.llama31(tmp_path / "m", num_hidden_layers=1) / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    tokenizer["pre_tokenizer"] = description(KNOWN["deepseek-llm"])
    tokenizer["model"] |= {"ignore_merges": False, "merges": ["t h", "th e", "x 1"]}
    pre_tokenizers.hold(path, tokenizer, "deepseek-llm")
    for odd in ("1 2", ["x1", "23"]):
        tokenizer["model"]["merges"].append(odd)
        with pytest.raises(Refused, match="expected no digits merged by a deepseek-llm"):
            pre_tokenizers.hold(path, tokenizer, "deepseek-llm")
        tokenizer["model"]["merges"].pop()


SCRIPTS = {  # the first letters of blocks of Unicode, and how many
    "Latin": (0xC0, 0x180), "Greek": (0x391, 0x3A), "Cyrillic": (0x410, 0x50), "Armenian": (0x531, 0x50),
    "Hebrew": (0x5D0, 27), "Arabic": (0x620, 0x40), "Devanagari": (0x904, 0x4C), "Thai": (0xE01, 0x3A),
    "Georgian": (0x10D0, 0x2B), "Hangul": (0xAC00, 0x800), "Kana": (0x3041, 0xB0), "Han": (0x4E00, 0x1000),
}  # fmt: skip


def corpus():
    """Our documents and code, the standard library's code, words of twelve scripts: 24,000 lines."""
    import random

    ours = [path for kind in ("*.md", "scripts/**/*.py") for path in sorted(ROOT.glob(kind))]
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    lines = []
    for path in [*ours, *library]:
        lines += path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    lines, random_ = lines[:20_000], random.Random(1)
    for first, count in SCRIPTS.values():
        for _ in range(340):
            words = [
                "".join(chr(first + random_.randrange(count)) for _ in range(random_.randint(1, 9)))
                for _ in range(random_.randint(1, 12))
            ]
            marks = random_.choices(
                [" ", "  ", ", ", "-", " 42 ", "\t", "'", "\u3002", " 7,"], k=len(words)
            )
            lines.append("".join(a + b for a, b in zip(words, marks, strict=True)) + "\n")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(pre_tokenizers.TAKEN))
def test_twenty_thousand_lines_become_the_same_tokens(name, python, tmp_path):
    lines = corpus()
    assert len(lines) >= 24_000
    (tmp_path / "texts.json").write_text(json.dumps(lines))
    splits, whole = description(KNOWN[name]), name in pre_tokenizers.WHOLE
    asked = [lines[::3], splits, whole, str(tmp_path / f"{name}.tokenizer.json")]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run(python("transformers"), LEARN, tmp_path / "asked.json")
    run(python("transformers"), ENCODE, tmp_path, tmp_path / "texts.json", name)
    run(python("llamacpp"), ASK, tmp_path, tmp_path / "texts.json", name)
    found = zip(lines, ids(tmp_path, name, "theirs"), ids(tmp_path, name, "ours"), strict=True)
    others = [text for text, theirs, ours in found if theirs != ours]
    print(f"{name}: {len(lines) - len(others)} of {len(lines)} lines equal")
    assert all(pre_tokenizers.differs_in_libllama(name, text) for text in others), others[:5]
    assert others == [] or name in pre_tokenizers.NEAR
