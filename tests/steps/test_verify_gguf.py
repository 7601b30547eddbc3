"""The record of a GGUF file: given for the checkpoint's values, refused for any other."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_safetensors_to_gguf import change_values

import checkpoints
import spec_faults
import tokenizers_of
from conftest import ROOT, convert
from ingot.parity import hard_texts

pytestmark = pytest.mark.slow
PIECES = """
import json, sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(sys.argv[1])
print(json.dumps([(model.IdToPiece(n), model.GetScore(n)) for n in range(model.vocab_size())]))
"""
NONE = [
    word for name in ("reading", "reference", "texts", "scores") for word in (f"--{name}", "unread")
]


def verify(run, folder, checkpoint, dtype="bf16", pre="llama-bpe", peers=NONE):
    """`peers` are not read before the file's own bytes are found right."""
    return run(
        "llamacpp", "verify_gguf.py", "--checkpoint", checkpoint, "--gguf", folder / "m.gguf",
        "--dtype", dtype, "--name", "A name", "--pre-tokenizer", pre,
        "--record", folder / "m.json", *peers,
    )  # fmt: skip


def test_every_dtype_is_verified_and_says_what_was_rounded(ok, peers, tmp_path):
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint", tame=True)
    told = peers(checkpoint)
    for dtype in ("f32", "bf16", "f16", "q8_0"):
        convert(ok, checkpoint, tmp_path / "m.gguf", dtype)
        # its weights are random: q8_0 loses 0.0057
        limit = ["--limit", "mean_kl=0.01"] if dtype == "q8_0" else []
        verify(ok, tmp_path, checkpoint, dtype, peers=[*told, *limit])
        checks = json.loads((tmp_path / "m.json").read_bytes())["checks"]
        assert (checks["values_rounded"] == 0) == (dtype in ("f32", "bf16"))
        assert (checks["tensors"], checks["chats_equal"]) == (31, 20)
        assert checks["texts_equal"] > len(hard_texts.STRINGS)
        assert checks["numbers"]["mean_kl"] <= checks["numbers"]["limits"]["mean_kl"]
        assert dtype == "q8_0" or checks["greedy_equal"] + checks["greedy_ties"] == 24


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.content }", "{{ raise_exception('no') }}", "{{ '' }}"],
)
def test_a_chat_template_that_renders_nothing_is_refused(template, step, reading, tmp_path):
    """Else its file has a record, and whoever chats with it an error."""
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    changed = json.dumps({**settings, "chat_template": template})
    (checkpoint / "tokenizer_config.json").write_text(changed)
    done = step(
        "transformers", "encode_texts.py", "--checkpoint", checkpoint, *reading(checkpoint),
        "--corpus", ROOT / "models/corpus.txt", "--tokens", 1024, "--texts", tmp_path / "texts",
    )  # fmt: skip
    assert done.returncode == 1 and "expected one that transformers renders" in done.stderr
    line = done.stderr.splitlines()[-1]
    assert re.search(
        rf"{checkpoint}/tokenizer_config\.json: its chat template .*; take that of ", line
    )
    assert ".," not in line, "no sentence of others ends within ours"


def pieces_of(python, checkpoint):
    """Text and score of each piece of its tokenizer.model, by sentencepiece."""
    command = [python("convert"), "-c", PIECES, checkpoint / "tokenizer.model"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_a_sentencepiece_model_that_transformers_rewrote_has_its_tokens(
    ok, peers, python, sentencepiece, tmp_path
):
    """By scores that follow the merges: llama.cpp's own converter gives every token the same."""
    checkpoint = checkpoints.llama2(tmp_path / "checkpoint", sentencepiece)
    pieces = pieces_of(python, checkpoint)
    tokenizers_of.rewritten(checkpoint, pieces)
    told = peers(checkpoint)
    convert(ok, checkpoint, tmp_path / "m.gguf", "f32", "default")
    verify(ok, tmp_path, checkpoint, "f32", "default", peers=told)
    checks = json.loads((tmp_path / "m.json").read_bytes())["checks"]
    assert checks["texts_equal"] > len(hard_texts.STRINGS)


def test_a_sentencepiece_model_beside_its_tokenizer_json_has_its_tokens(
    ok, peers, python, sentencepiece, tmp_path
):
    """As Llama 2 is: LlamaTokenizer of transformers 5 would build another normaliser than the file's."""
    checkpoint = checkpoints.llama2(tmp_path / "checkpoint", sentencepiece)
    pieces = pieces_of(python, checkpoint)
    kept = [checkpoint / name for name in ("tokenizer.model", "tokenizer_config.json")]
    texts = [path.read_bytes() for path in kept]
    tokenizers_of.rewritten(checkpoint, pieces)
    kept[0].write_bytes(texts[0])
    settings = json.loads(texts[1]) | {"legacy": False, "chat_template": tokenizers_of.PLAIN}
    settings["added_tokens_decoder"].pop("401")  # which the model has not
    for kind, text in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>")):
        settings[f"{kind}_token"] = {
            "__type": "AddedToken",
            "content": text,
            **tokenizers_of.PLAINLY,
        }
    checkpoints.write_json(kept[1], settings)
    convert(ok, checkpoint, tmp_path / "m.gguf", "f32", "default")
    verify(ok, tmp_path, checkpoint, "f32", "default", peers=peers(checkpoint))
    assert json.loads((tmp_path / "m.json").read_bytes())["checks"]["texts_equal"] > len(
        hard_texts.STRINGS
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "q8_0"])
@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output.weight", "rope_freqs.weight"])
def test_one_wrong_value_is_refused(dtype, name, ok, step, tmp_path):
    from pathlib import Path

    from ingot.formats.gguf.file import read

    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", dtype)
    (info,) = [t for t in read(Path(tmp_path / "m.gguf"))[1] if t.name == name]
    raw = np.memmap(tmp_path / "m.gguf", np.uint8, "r+", info.offset, info.nbytes)
    raw[-1] ^= 0x20
    raw.flush()
    done = verify(step, tmp_path, checkpoint, dtype)
    assert done.returncode == 1 and f"tensor {name} is not" in done.stderr
    assert not (tmp_path / "m.json").exists()


def test_rows_left_in_the_checkpoints_order_are_refused(ok, step, tmp_path):
    """A converter that forgets to reorder q: the same values, in the wrong rows."""
    from pathlib import Path

    from ingot.formats.gguf.file import read

    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", "bf16")
    (info,) = [t for t in read(Path(tmp_path / "m.gguf"))[1] if t.name == "blk.0.attn_k.weight"]
    raw = np.memmap(tmp_path / "m.gguf", np.uint16, "r+", info.offset, info.shape)
    raw[[0, 1]] = raw[[1, 0]]
    raw.flush()
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and "blk.0.attn_k.weight is not" in done.stderr


SCALARS = (
    "llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon", "llama.context_length",
    "llama.block_count", "llama.attention.head_count", "llama.attention.head_count_kv",
    "llama.rope.dimension_count", "llama.attention.key_length", "llama.attention.value_length",
    "llama.embedding_length", "llama.feed_forward_length", "llama.vocab_size", "general.file_type",
    "general.quantization_version", "general.sampling.temp", "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
)  # fmt: skip
STRINGS = (
    "general.architecture", "general.name", "general.size_label", "tokenizer.ggml.pre",
    "tokenizer.ggml.model", "tokenizer.chat_template",
)  # fmt: skip
LISTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type")


@pytest.fixture
def planted(ok, step, tmp_path_factory, tmp_path):
    """planted(key, at) verifies a file in which one byte was changed, `at` bytes behind the key's type."""
    source = tmp_path_factory.mktemp("planted")
    checkpoint = checkpoints.llama31(source / "checkpoint")
    convert(ok, checkpoint, source / "m.gguf", "bf16")

    def run(key, at):
        data = bytearray((source / "m.gguf").read_bytes())
        mark = len(key).to_bytes(8, "little") + key.encode()
        assert data.count(mark) == 1, key
        data[data.index(mark) + len(mark) + 4 + at] ^= 1
        (tmp_path / "m.gguf").write_bytes(data)
        return verify(step, tmp_path, checkpoint)

    return run


@pytest.mark.parametrize(
    "key, at",
    [*((key, 0) for key in SCALARS), *((key, 8) for key in STRINGS), *((key, 20) for key in LISTS[:2]),
     (LISTS[2], 12), (LISTS[2], 12 + 4 * 1016)],
)  # fmt: skip
def test_one_wrong_byte_of_the_metadata_is_refused_by_the_name_of_its_key(
    key, at, planted, tmp_path
):
    done = planted(key, at)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"m.gguf: {key}" in done.stderr and done.stderr.endswith("\n")
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize("fault, said", [
    ("version 2", "m.gguf: GGUF version 2, expected 3"),
    ("tensor 0: a column less", "m.gguf: tensor rope_freqs.weight has shape [15], expected [16]"),
    ("the last: a column less", "255], expected ["),
    ("tokenizer.ggml.token_type: 2^60 items", "m.gguf: header is damaged or ends early"),
])  # fmt: skip
def test_what_gguf_py_reads_all_the_same_or_for_ever_is_refused(fault, said, ok, step, tmp_path):
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", "bf16")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    edits = dict(spec_faults.gguf(bytes(data)))
    last = [name for name in edits if name.endswith(": a column less")][-1]
    edits[last if fault.startswith("the last") else fault](data)
    (tmp_path / "m.gguf").write_bytes(data)
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_of_another_tokenizer_is_refused(ok, step, tmp_path):
    """Of another revision: two tokens swapped, all else the same."""
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(ok, other, tmp_path / "m.gguf", "bf16")
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and "tokenizer.ggml.tokens[300] is" in done.stderr


def test_a_key_that_does_not_follow_from_the_checkpoint_is_refused(ok, step, tmp_path):
    checkpoint = checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf", "bf16", license="mit")
    done = verify(step, tmp_path, checkpoint)
    assert done.returncode == 1 and "general.license is there, expected no such key" in done.stderr


def changed(tmp_path, name, bits):
    """A checkpoint in which the first value of a tensor has these bits."""
    folder = checkpoints.nemo(tmp_path / "checkpoint")
    change_values(folder / "model.safetensors", name, bits)
    return folder


def test_values_that_became_infinite_are_not_verified(ok, step, tmp_path):
    folder = changed(tmp_path, "lm_head.weight", 0x7F00)  # 1.7e38
    convert(ok, folder, tmp_path / "m.gguf", "f16", "tekken", None, "--allow-overflow")
    done = verify(step, tmp_path, folder, "f16", "tekken")
    assert done.returncode == 1
    assert (
        "tensor output.weight holds infinity in F16, expected values up to 1.7e+38" in done.stderr
    )
