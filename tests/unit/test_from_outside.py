"""What comes from outside is checked against what it should be, before anything rests on it."""

import json
import resource
import struct

import pytest

import checkpoints
import fuzz
from ingot.base.refused import LONGEST, Refused
from ingot.formats.gguf import file as gguf
from ingot.formats.gguf import metadata, vocabulary
from ingot.formats.gguf.kv import KV
from ingot.formats.iree import irpa
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_header
from ingot.model.config import read_config
from ingot.model.tensors.dtypes import TYPES

CASES = 300


@pytest.mark.parametrize("name", fuzz.READERS)
def test_damage_is_refused_in_one_line_or_does_no_harm(name, tmp_path):
    found = fuzz.run(fuzz.READERS[name], tmp_path, seed=7, cases=CASES)
    assert not found.bad, found.bad[:5]
    assert found.counts["refused"] > CASES // 20


def shard(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape, begin, end, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_header_of_87_bytes_takes_no_memory(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = shard(tmp_path / "m.safetensors", {"a": entry(["x", 1_500_000_000], 0, 0, "BF16")})
    with pytest.raises(Refused, match="the shape of a is not a short list of whole numbers"):
        read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize(
    "header, size, text",
    [
        ({"a": entry([1], 0, 2, "F16"), "b": entry([1], 4, 6, "F16")}, 6, "bytes of no tensor"),
        ({"a": entry([1], 0, 2, "F16")}, 8, "6 bytes after tensor a, expected none"),
        ({"a": entry([1], 2, 4, "F16")}, 4, "the header and tensor a have bytes of no tensor"),
        ({"a": entry([1.0], 0, 2, "F16")}, 2, "the shape of a is not"),
        ({"a": entry([True], 0, 2, "F16")}, 2, "the shape of a is not"),
        ({"a": entry([1], 0.0, 2.0, "F16")}, 2, "data_offsets of a is not"),
        (b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":1}', 2, "'a' comes twice"),
        ({"a\x1b[2J": entry([1], 0, 2, "F16")}, 2, r"tensor name 'a\\x1b\[2J' holds control"),
        (b"[" * 200_000, 0, "not a safetensors header"),
    ],
)
def test_a_shard_that_says_what_cannot_be_is_refused(header, size, text, tmp_path):
    with pytest.raises(Refused, match=text):
        read_header(shard(tmp_path / "m.safetensors", header, bytes(size)))


def gguf_bytes(alignment=None, tensors=None):
    pairs = [KV("general.alignment", "u32", alignment)] if alignment else []
    kinds = tensors or [("a", TYPES["F16"], (3, 5)), ("b", TYPES["F32"], (7,))]
    found = gguf.layout(pairs, kinds)
    return found.head.ljust(found.size, b"\0")


@pytest.mark.parametrize("alignment", [64, 256])
def test_a_gguf_file_of_another_alignment_is_read_where_its_tensors_are(alignment, tmp_path):
    shape = (4, alignment // 8)  # so that each tensor ends on the alignment
    data = bytearray(gguf_bytes(alignment, [("a", TYPES["F16"], shape)]))
    head = data.rindex(b"a" + struct.pack("<I", 2)) + 1 + 4 + 2 * 8 + 4 + 8
    start = -(-head // alignment) * alignment
    body = bytes(range(64)) * (alignment // 64)
    (tmp_path / "m.gguf").write_bytes(bytes(data[:head]).ljust(start, b"\0") + body)
    _, (tensor,) = gguf.read(tmp_path / "m.gguf")
    assert tensor.offset == start and tensor.nbytes == len(body)


@pytest.mark.parametrize(
    "change, text",
    [
        (
            lambda d: d.replace(b"b" + struct.pack("<I", 1), b"a" + struct.pack("<I", 1)),
            "a comes twice",
        ),
        (lambda d: d[:-10], r"tensor b ends at byte \d+, but the file has \d+; it was cut short"),
        (
            lambda d: gguf_bytes(None, [("q", TYPES["Q8_0"], (2, 40))]),
            "expected rows of whole blocks",
        ),
        (lambda d: gguf_bytes(7), "general.alignment is 7, expected a multiple of 8"),
        (lambda d: d.replace(struct.pack("<IQ", 0, 32), struct.pack("<IQ", 0, 64)), "expected 32"),
        (lambda d: d[:16] + struct.pack("<Q", 2**60) + d[24:], "header is damaged"),
    ],
)
def test_a_gguf_file_that_says_what_cannot_be_is_refused(change, text, tmp_path):
    data = gguf_bytes()
    assert change(data) != data
    (tmp_path / "m.gguf").write_bytes(change(data))
    with pytest.raises(Refused, match=text):
        gguf.read(tmp_path / "m.gguf")


def test_an_archives_entries_lie_inside_it_and_have_the_size_of_their_shape(tmp_path):
    path = fuzz.irpa_file(tmp_path)
    whole = path.read_bytes()
    nbytes = struct.pack("<Q", 64)
    at = whole.index(nbytes + nbytes[:0], irpa.TABLE + 60)
    for number, text in ((1 << 62, "ends at byte"), (60, r"has 60 bytes for F16 \[4, 8\]")):
        path.write_bytes(whole[:at] + struct.pack("<Q", number) + whole[at + 8 :])
        with pytest.raises(Refused, match=text):
            irpa.read(path)
    path.write_bytes(whole.replace(b"a.c", b"a.b"))
    with pytest.raises(Refused, match="another has its name"):
        irpa.read(path)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"num_hidden_layers": 3_000_000}, "expected a whole number from 1 to 10000"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5, expected a whole number"),
        ({"num_attention_heads": 2.0}, "num_attention_heads is 2.0, expected a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a number above 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, expected a number above 0"),
        ({"rope_theta": "big"}, "rope_theta is 'big', expected a number above 0"),
        ({"rope_theta": -1}, "rope_theta is -1, expected a number above 0"),
        ({"rope_scaling": []}, "rope_scaling is a list, expected an object or null"),
        ({"rope_parameters": 5}, "rope_parameters is 5, expected an object or null"),
        ({"architectures": {}}, "architectures is a dict, expected a list"),
        ({"sliding_window": "x"}, "sliding_window is 'x', expected a whole number"),
        ({"max_position_embeddings": 1e30}, "max_position_embeddings is 1e[+]30, expected a whole"),
        ({"num_key_value_heads": 3}, "over 3 KV heads, expected a multiple"),
        ({"head_dim": 33}, "heads of 33 values"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000, expected a whole number"),
    ],
)
def test_a_config_is_held_to_whole_finite_bounded_numbers(changes, text, tmp_path):
    folder = checkpoints.llama31(tmp_path / "c")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(Refused, match=f"^{path}: .*{text}"):
        read_config(path)


def test_a_null_theta_is_the_default(tmp_path):
    folder = checkpoints.llama31(tmp_path / "c")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rope_theta": None}))
    assert read_config(path).rope_theta == 10000.0


def change_tokenizer(found):
    return {
        "added token without id": lambda: found["added_tokens"][0].pop("id"),
        "negative id": lambda: found["added_tokens"][0].update(id=-5),
        "merge of one part": lambda: found["model"]["merges"].append(["a"]),
        "merge that is a number": lambda: found["model"]["merges"].append(5),
        "empty vocabulary": lambda: (
            found["model"].update(vocab={}),
            found.update(added_tokens=[]),
        ),
        "vocabulary that is a list": lambda: found["model"].update(vocab=["a"]),
        "half a character": lambda: found["model"]["vocab"].update({"\ud800": 5}),
        "id that is a text": lambda: found["model"]["vocab"].update(a="1"),
    }


@pytest.mark.parametrize("fault", change_tokenizer({}))
def test_a_tokenizer_is_held_to_its_fields(fault, tmp_path):
    folder = checkpoints.llama31(tmp_path / "c")
    path = folder / "tokenizer.json"
    found = json.loads(path.read_bytes())
    change_tokenizer(found)[fault]()
    path.write_text(json.dumps(found))
    config = read_config(folder / "config.json")
    with pytest.raises(Refused, match=r"tokenizer\.json: "):
        vocabulary.vocabulary(Checkpoint([folder]), config, "llama-bpe")


@pytest.mark.parametrize(
    "name, content, text",
    [
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is 5, expected a text"),
        ("tokenizer_config.json", b'{"eos_token": ["a"]}', "eos_token is a list, expected a text"),
        (
            "tokenizer_config.json",
            b'{"add_prefix_space": "yes"}',
            "is 'yes', expected true or false",
        ),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja: not UTF-8"),
    ],
)
def test_settings_of_a_tokenizer_are_held_to_their_types(name, content, text, tmp_path):
    folder = checkpoints.llama31(tmp_path / "c")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / name).write_bytes(content)
    config = read_config(folder / "config.json")
    with pytest.raises(Refused, match=text):
        vocabulary.vocabulary(Checkpoint([folder]), config, "llama-bpe")


def test_an_absent_pad_token_may_be_minus_one(tmp_path):
    folder = checkpoints.llama31(tmp_path / "c")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "pad_token_id": -1}))
    (folder / "tokenizer_config.json").write_text("{}")
    pairs = vocabulary.vocabulary(Checkpoint([folder]), read_config(path), "llama-bpe")
    assert all(pair.key != "tokenizer.ggml.padding_token_id" for pair in pairs)


def test_sampling_settings_are_held_to_their_types(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": 40.5}')
    with pytest.raises(Refused, match=r"generation_config\.json: top_k is 40\.5, expected a whole"):
        Checkpoint([tmp_path]).optional_json("generation_config.json", metadata.GENERATION)


def test_a_message_is_bounded_and_moves_no_cursor():
    text = str(Refused("name \x1b[2J\x07 " + "x" * 10**6))
    assert "\x1b" not in text and r"\x1b[2J\x07" in text and len(text) < 2 * LONGEST
