"""The converter: llama.cpp's bytes, and one clear line for a damaged checkpoint."""

import json
import struct
from pathlib import Path

import pytest

import checkpoints
import families
import tokenizers_of
from conftest import convert, llama_cpp, once
from ingot.formats.gguf.file import read
from ingot.model.checkpoint.safetensors import read_header

SHAPES = (*checkpoints.VARIANTS, *families.SHAPES)
DTYPES = ("f32", "f16", "bf16", "q8_0")
PRE = {"nemo": "tekken", "llama2": "default"}
LICENCE = {"tied": "apache-2.0", "bare": "apache-2.0"}


@pytest.fixture(scope="module")
def oracle(forked, tmp_path_factory, sentencepiece):
    """oracle(kind): a checkpoint, and the folder of llama.cpp's own GGUF files of it."""

    def make(kind):
        with once(tmp_path_factory, f"oracle-{kind}") as (folder, filled):
            checkpoint = checkpoints.DEMO if kind == "demo" else folder / "checkpoint"
            if filled:
                return checkpoint, folder
            if kind == "llama2":
                checkpoints.llama2(checkpoint, sentencepiece)
            elif kind != "demo":
                getattr(checkpoints, kind)(checkpoint)
            asked = [[str(checkpoint), str(folder), PRE.get(kind, "llama-bpe")]]
            done = llama_cpp(forked, asked, DTYPES)
            assert (folder / "q8_0.gguf").exists(), done.stderr[-3000:]
        return checkpoint, folder

    return make


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["demo", "llama31", "real_heads", "nemo", "tied", "bare", "llama2"]
)
def test_writes_the_bytes_of_llama_cpps_converter(kind, dtype, oracle, ok, tmp_path):
    checkpoint, expected = oracle(kind)
    convert(ok, checkpoint, tmp_path / "m.gguf", dtype, PRE.get(kind), LICENCE.get(kind))
    assert (tmp_path / "m.gguf").read_bytes() == (expected / f"{dtype}.gguf").read_bytes()


@pytest.fixture(scope="module")
def variants(forked, pieces, tmp_path_factory):
    """A folder per variant: its checkpoint, and llama.cpp's files of it."""
    with once(tmp_path_factory, "variants") as (folder, filled):
        if not filled:
            places = {name: folder / name for name in SHAPES}
            for name, place in places.items():
                checkpoints.variant(place / "checkpoint", name, tokenizer=pieces)
            asked = [[f"{place}/checkpoint", str(place), "llama-bpe"] for place in places.values()]
            done = llama_cpp(forked, asked, DTYPES)
            assert (places["long context"] / "q8_0.gguf").exists(), done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_a_family_has_llama_cpps_bytes(name, variants, ok, tmp_path):
    for dtype in DTYPES:
        pre = "default" if name in families.PIECED else "llama-bpe"
        convert(ok, variants / name / "checkpoint", tmp_path / "m.gguf", dtype, pre)
        theirs = variants / name / f"{dtype}.gguf"
        assert (tmp_path / "m.gguf").read_bytes() == theirs.read_bytes(), dtype


def pre_of_tokenizer(name):
    return tokenizers_of.PRE.get(name, "llama-bpe")


@pytest.fixture(scope="module")
def tokenizers(forked, tmp_path_factory):
    """A folder per tokenizer: a checkpoint with it, and llama.cpp's file of that."""
    names = tokenizers_of.NAMES
    with once(tmp_path_factory, "tokenizers") as (folder, filled):
        if not filled:
            for name in names:
                (folder / name).mkdir()
                tokenizers_of.write(folder / name / "checkpoint", name)
            asked = [
                [f"{folder / n}/checkpoint", str(folder / n), pre_of_tokenizer(n)] for n in names
            ]
            done = llama_cpp(forked, asked, ["q8_0"])
            assert (folder / names[-1] / "q8_0.gguf").exists(), done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", tokenizers_of.NAMES)
def test_every_tokenizer_has_llama_cpps_bytes(name, tokenizers, ok, tmp_path):
    checkpoint, pre = tokenizers / name / "checkpoint", pre_of_tokenizer(name)
    convert(ok, checkpoint, tmp_path / "m.gguf", "q8_0", pre)
    theirs = tokenizers / name / "q8_0.gguf"
    assert (tmp_path / "m.gguf").read_bytes() == theirs.read_bytes()


def metadata(path):
    return read(path)[0]


def test_a_stored_head_is_left_out_where_config_json_ties_it_and_it_is_the_embedding(
    ok, step, tmp_path
):
    """transformers 5 takes a head of its own as it is, and ties nothing: then config.json is wrong."""
    folder = checkpoints.llama31(tmp_path / "checkpoint")
    edit_json(folder / "config.json", tie_word_embeddings=True)
    done = convert(step, folder, tmp_path / "m.gguf")
    assert (
        done.returncode == 1 and "lm_head.weight is not the embedding, but tie_word" in done.stderr
    )
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= {name: (path, tensor) for name, tensor in read_header(path).items()}
    (source, one), (place, head) = (
        found[n] for n in ("model.embed_tokens.weight", "lm_head.weight")
    )
    data = source.read_bytes()[one.offset : one.offset + one.nbytes]
    with place.open("r+b") as file:
        file.seek(head.offset)
        file.write(data)
    done = convert(ok, folder, tmp_path / "m.gguf")
    assert "output.weight" not in [info.name for info in read(tmp_path / "m.gguf")[1]]
    assert "lm_head.weight: left out, since tie_word_embeddings is true" in done.stderr


def test_a_mistrals_context_ends_at_its_window(ok, tmp_path):
    """Mistral 7B v0.1 has one of 4096 of 32768 tokens; llama.cpp drops it, and is wrong beyond."""
    folder = checkpoints.nemo(tmp_path / "checkpoint")
    edit_json(folder / "config.json", sliding_window=64)
    convert(ok, folder, tmp_path / "m.gguf", pre="tekken")
    assert metadata(tmp_path / "m.gguf")["llama.context_length"] == 64


def test_a_name_never_comes_from_the_folder(ok, tmp_path):
    one = checkpoints.llama31(tmp_path / "Meta-Llama-3.1-8B-Instruct")
    two = tmp_path / "0e9e39f249a16976918f6564b8830bc894c89659"
    convert(ok, one, tmp_path / "one.gguf")
    one.rename(two)
    convert(ok, two, tmp_path / "two.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_values_that_float16_cannot_hold_are_refused_or_counted(ok, step, tmp_path):
    folder = checkpoints.nemo(tmp_path / "checkpoint")
    change_values(folder / "model.safetensors", "lm_head.weight", 0x7F00)  # 1.7e38
    for dtype in ("f16", "q8_0"):
        done = convert(step, folder, tmp_path / "m.gguf", dtype, pre="tekken")
        assert (
            done.returncode == 1 and "tensor lm_head.weight holds 1.7e+38, expected" in done.stderr
        )
        assert "ask for bf16 or f32, or set allow_overflow" in done.stderr
    done = convert(ok, folder, tmp_path / "m.gguf", "f16", "tekken", None, "--allow-overflow")
    assert "lm_head.weight: 1 values beyond 65504 became infinite in float16" in done.stderr


def test_what_is_infinite_in_the_checkpoint_is_said_as_nan_is(step, tmp_path):
    folder = checkpoints.nemo(tmp_path / "checkpoint")
    for bits in (0x7F80, 0xFF80):
        change_values(folder / "model.safetensors", "lm_head.weight", bits)
        done = convert(step, folder, tmp_path / "m.gguf", "bf16", pre="tekken")
        assert done.returncode == 1
        assert "tensor lm_head.weight holds infinity; the checkpoint is damaged" in done.stderr


def change_values(shard: Path, name: str, bits: int) -> None:
    """Overwrite the first bfloat16 of a tensor."""
    with shard.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        file.seek(8 + length + header[name]["data_offsets"][0])
        file.write(struct.pack("<H", bits))


def change_header(shard: Path, change) -> None:
    """Apply `change` to a shard's header and data, and write both back."""
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    change(header, data)
    text = json.dumps(header).encode()
    shard.write_bytes(struct.pack("<Q", len(text)) + text + data)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
DAMAGE = {
    "truncated shard": (
        lambda d: (d / SECOND).write_bytes((d / SECOND).read_bytes()[:-100]),
        rf"{SECOND}: tensor model\S+ ends at byte \d+, but the file has \d+; it was cut short",
    ),
    "header beyond the file": (
        lambda d: (d / SECOND).write_bytes(struct.pack("<Q", 1 << 40) + b"{}"),
        rf"{SECOND}: header of {1 << 40} bytes in a file of 10, expected a safetensors file",
    ),
    "empty shard": (
        lambda d: (d / SECOND).write_bytes(b""),
        rf"{SECOND}: header of 0 bytes in a file of 0",
    ),
    "header that is no JSON": (
        lambda d: (d / SECOND).write_bytes(struct.pack("<Q", 4) + b"nope"),
        rf"{SECOND}: header is not a safetensors header",
    ),
    "overlapping offsets": (
        lambda d: change_header(
            d / FIRST,
            lambda h, _: h["lm_head.weight"].update(
                data_offsets=h["model.embed_tokens.weight"]["data_offsets"]
            ),
        ),
        rf"{FIRST}: the header and tensor lm_head.weight have bytes of no tensor between them",
    ),
    "offsets out of range": (
        lambda d: change_header(
            d / FIRST,
            lambda h, _: h["lm_head.weight"].update(
                data_offsets=[1 << 33, (1 << 33) + 1056 * 256 * 2]
            ),
        ),
        rf"{FIRST}: tensor lm_head.weight ends at byte \d+, but the file has",
    ),
    "negative offsets": (
        lambda d: change_header(
            d / FIRST, lambda h, _: h["lm_head.weight"].update(data_offsets=[-8, 0])
        ),
        rf"{FIRST}: header is not a safetensors header \(data_offsets of lm_head.weight is not a",
    ),
    "size that is not the shape's": (
        lambda d: change_header(d / FIRST, lambda h, _: h["lm_head.weight"].update(shape=[1, 2])),
        rf"{FIRST}: tensor lm_head.weight has offsets \S+, expected 4 bytes for BF16 \[1, 2\]",
    ),
    "unknown dtype": (
        lambda d: change_header(d / FIRST, lambda h, _: h["lm_head.weight"].update(dtype="F8_E4M3")),
        rf"{FIRST}: tensor lm_head.weight has dtype F8_E4M3, expected one of BF16, F16, F32",
    ),
    "missing tensor": (
        lambda d: (
            change_header(d / FIRST, lambda h, d: checkpoints.cut_out(h, d, "lm_head.weight")),
            edit_index(d, lambda m: m.pop("lm_head.weight")),
        ),
        r"checkpoint: tensor lm_head.weight is in no shard, expected by config.json",
    ),
    "tensor that the index does not know": (
        lambda d: edit_index(d, lambda m: m.pop("lm_head.weight")),
        rf"{FIRST}: tensor lm_head.weight is not in the index",
    ),
    "index that names an absent shard": (
        lambda d: (d / SECOND).unlink(),
        rf"model.safetensors.index.json: names {SECOND}, which is missing",
    ),
    "index that leaves the folder": (
        lambda d: edit_index(d, lambda m: m.update({"lm_head.weight": "../x.safetensors"})),
        r"index.json: shard name '../x.safetensors' leaves its folder",
    ),
    "pickled weights": (
        lambda d: (
            [p.unlink() for p in d.glob("*.safetensors*")],
            (d / "pytorch_model.bin").write_bytes(b"\x80"),
        ),
        r"has pytorch_model.bin but no \*.safetensors; pickled weights can run code",
    ),
    "NaN": (
        lambda d: change_values(d / FIRST, "lm_head.weight", 0xFFC0),
        rf"{FIRST}: tensor lm_head.weight holds NaN",
    ),
    "shape that is not config.json's": (
        lambda d: edit_json(d / "config.json", vocab_size=1057),
        rf"{FIRST}: tensor \S+ has shape \[1056, 256\], expected \[1057, 256\] by config.json",
    ),
    "unknown tensor": (
        lambda d: (
            change_header(d / FIRST, lambda h, _: h.update(odd=h.pop("lm_head.weight"))),
            edit_index(d, lambda m: (m.pop("lm_head.weight"), m.update(odd=FIRST))),
        ),
        rf"{FIRST}: 1 tensors have no place by config.json, first odd",
    ),
    "unknown rope scaling": (
        lambda d: edit_json(d / "config.json", rope_scaling={"rope_type": "dynamic", "factor": 4}),
        r"config.json: rope_type is dynamic, expected llama3, linear, yarn, longrope or default",
    ),
    "other architecture": (
        lambda d: edit_json(d / "config.json", architectures=["MambaForCausalLM"]),
        r"config.json: architectures is MambaForCausalLM, expected",
    ),
    "config without a number": (
        lambda d: edit_json(d / "config.json", rms_norm_eps=None),
        r"config.json: rms_norm_eps is missing",
    ),
    "number that is none": (
        lambda d: edit_json(d / "config.json", hidden_size="256"),
        r"config.json: hidden_size is '256', expected a whole number from 1",
    ),
    "no heads": (
        lambda d: edit_json(d / "config.json", num_attention_heads=0),
        r"config.json: num_attention_heads is 0, expected a whole number from 1",
    ),
    "another activation": (
        lambda d: edit_json(d / "config.json", hidden_act="gelu"),
        r"config.json: hidden_act is gelu, expected silu; it would be left out",
    ),
    "rope scaling by nothing": (
        lambda d: edit_json(
            d / "config.json", rope_scaling={**checkpoints.LLAMA3_ROPE, "factor": 0}
        ),
        r"config.json: rope_scaling .* expected 0 < low < high and a factor above 0",
    ),
    "tokenizer of another kind": (
        lambda d: edit_json(d / "tokenizer.json", pre_tokenizer={"type": "ByteLevel"}),
        r"tokenizer.json: splits texts as .*, expected llama-bpe",
    ),
    "SentencePiece that the catalogue does not know of": (
        lambda d: (d / "tokenizer.model").write_bytes(b"x"),
        r"checkpoint: a tokenizer.model, but pre_tokenizer is llama-bpe in the catalogue",
    ),
    "token id beyond the vocabulary": (
        lambda d: edit_json(d / "config.json", vocab_size=1000),
        r"(token id 1023|expected \[1000, 256\])",
    ),
}  # fmt: skip


def edit_json(path: Path, **changes) -> None:
    checkpoints.write_json(path, {**json.loads(path.read_bytes()), **changes})


def edit_index(folder: Path, change) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_bytes())
    change(index["weight_map"])
    checkpoints.write_json(path, index)


@pytest.mark.parametrize("damage", DAMAGE)
def test_names_shard_and_tensor_of_a_damaged_checkpoint(damage, step, tmp_path):
    break_it, expected = DAMAGE[damage]
    folder = checkpoints.llama31(tmp_path / "checkpoint")
    break_it(folder)
    done = convert(step, folder, tmp_path / "out" / "m.gguf")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert_matches(expected, done.stderr)
    assert not list((tmp_path / "out").glob("*"))  # nothing half-written


def assert_matches(pattern: str, text: str) -> None:
    import re

    assert re.search(pattern, text), text
