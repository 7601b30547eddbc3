"""A checkpoint as a step is given it, and what follows from its config.json alone."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import checkpoints
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata, special
from ingot.formats.gguf.file import layout, read
from ingot.formats.gguf.kv import KV
from ingot.formats.iree import irpa, stitch, tensor_parallel
from ingot.formats.onnx import attention
from ingot.formats.tensorrt import trtllm
from ingot.model.checkpoint import whole
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import read_config
from ingot.model.hub.listing import safe_name
from ingot.model.rope import Llama3Rope
from ingot.model.specs import rope_freqs, specs_of


@pytest.fixture
def tiny(tmp_path):
    return checkpoints.llama31(tmp_path / "checkpoint")


@pytest.fixture
def config(tiny):
    return read_config(tiny / "config.json")


def test_a_file_that_a_step_was_not_given_does_not_exist_for_it(tiny):
    (tiny / "chat_template.jinja").write_text("not given")
    given = Checkpoint([path for path in tiny.iterdir() if path.suffix != ".jinja"])
    assert "chat_template.jinja" not in given and "config.json" in given
    assert given.optional_json("chat_template.json") == {}
    with pytest.raises(Refused, match=r"checkpoint/chat_template.jinja: missing, expected a file"):
        given["chat_template.jinja"]
    with given.as_folder() as folder:
        assert not (folder / "chat_template.jinja").exists()
        assert (folder / "config.json").read_bytes() == (tiny / "config.json").read_bytes()


def test_messages_name_the_file_where_it_lies(tiny):
    (tiny / "config.json").write_text("[]")
    with pytest.raises(Refused, match=f"^{tiny}/config.json: holds a list, expected a JSON object"):
        read_json(Checkpoint([*tiny.iterdir()])["config.json"])


def test_json_that_is_none_is_to_be_got_again_from_wherever_it_came(tiny):
    (tiny / "config.json").write_text("x")
    with pytest.raises(Refused, match=r"config\.json: not JSON \(.*\); fetch or copy it again$"):
        read_json(tiny / "config.json")
    (tiny / "config.json").unlink()
    os.mkfifo(tiny / "config.json")
    with pytest.raises(
        Refused, match=r"config\.json: no plain file, expected a JSON file; put one"
    ):
        read_json(tiny / "config.json")


def test_rows_of_a_missing_tensor_are_refused_before_any_is_read(tiny, config, store):
    with (
        Rows(Checkpoint([tiny]), replace(config, layers=config.layers + 1), "x") as rows,
        pytest.raises(Refused, match=r"is in no shard, expected by config.json"),
    ):
        rows.specs("f16")


def test_a_checkpoint_is_held_against_config_json_by_its_headers_alone(tiny, config):
    checkpoint = Checkpoint([tiny])
    tensors = read_checkpoint(checkpoint)
    whole.hold(checkpoint, config, tensors)
    for change, said in (
        ({"layers": 2}, "9 tensors have no place by config.json, first model.layers.2"),
        ({"vocab": 1120}, r"has shape \[1056, 256\], expected \[1120, 256\] by config.json"),
        ({"kv_heads": 1}, r"k_proj.weight has shape \[128, 256\], expected \[32, 256\]"),
    ):
        with pytest.raises(Refused, match=said):
            whole.hold(checkpoint, replace(config, **change), tensors)


def test_what_a_gguf_file_says_is_read_back(tmp_path, config):
    pairs = [
        KV("general.name", "str", "Ünï"),
        KV("n", "[i32]", [1, -2]),
        KV("t", "[str]", ["a", ""]),
    ]
    specs = specs_of(config, "q8_0")
    found = layout(pairs, [(spec.name, spec.type, spec.shape) for spec in specs])
    path = tmp_path / "m.gguf"
    path.write_bytes(found.head.ljust(found.size, b"\0"))
    values, tensors = read(path)
    assert {key: values[key] for key, _, _ in pairs} == {key: said for key, _, said in pairs}
    assert tensors == found.entries
    path.write_bytes(found.head[:100])
    with pytest.raises(Refused, match=r"m\.gguf: header is damaged or ends early"):
        read(path)


def test_an_archive_says_where_its_tensors_are(tmp_path, config):
    tensors = [(spec.name, spec.type.name, spec.shape) for spec in specs_of(config, "f16")]
    found = irpa.layout({"schema": "GGUF"}, tensors)
    path = tmp_path / "m.irpa"
    data = bytearray(found.size)
    for offset, text in {0: found.head, **found.texts}.items():
        data[offset : offset + len(text)] = text
    path.write_bytes(data)
    properties, entries = irpa.read(path)
    assert properties["schema"] == "GGUF" and sorted(entries, key=str) == sorted(
        found.entries, key=str
    )
    assert found.size % irpa.PAGE == 0 and all(e.offset % irpa.ALIGNMENT == 0 for e in entries)


def test_ranks_of_a_set_hold_each_part_once(config):
    specs = specs_of(config, "f16")
    cuts = tensor_parallel.splits([(s.name, s.type.name, s.shape) for s in specs])
    ranks = [tensor_parallel.rank_layout(cuts, 2, rank).entries for rank in range(2)]
    whole = sum(s.type.nbytes(s.shape) for s in specs if s.name != tensor_parallel.DROPPED)
    assert sum(entry.nbytes for entries in ranks for entry in entries) == whole
    assert tensor_parallel.why_not(config, 2) is None
    assert "cannot be split over 3 ranks; choose" in tensor_parallel.why_not(config, 3)


def test_a_rank_of_tensorrt_llm_repeats_kv_heads_where_there_are_too_few(config):
    few = replace(config, kv_heads=1)
    mapping = trtllm.Mapping(tp=2)
    assert trtllm.why_not(few, mapping) is None
    qkv = next(cut for cut in trtllm.cuts(few, mapping) if cut.source.endswith("k_proj.weight"))
    assert qkv.parts == 1 and list(trtllm.places(qkv, 2)) == [(0, qkv.shape[0], [0, 1])]
    shapes = trtllm.shapes(trtllm.of_stage(trtllm.cuts(config, mapping), 0))
    found = trtllm.file_layout(shapes, "float16")
    assert found.size - len(found.head) == sum(2 * int(np.prod(s)) for s in shapes.values())


@pytest.mark.parametrize(
    "count, label",
    [(405_853_388_800, "406B"), (8_030_261_248, "8.0B"), (1_500_000, "1.5M"), (0, "0K")],
)
def test_size_labels_as_llama_cpp_writes_them(count, label):
    assert metadata.size_label(count) == label


def test_the_longest_wavelengths_are_divided_by_the_factor(config):
    rope = Llama3Rope(factor=8, low_freq_factor=1, high_freq_factor=4, original_context=64)
    long = replace(config, rope=rope, rope_theta=500000.0, head_dim=64)
    factors = rope_freqs(long)
    assert factors[0] == 1.0 and factors[-1] == 8.0 and factors == sorted(factors)
    plain = attention.frequencies(replace(long, rope=None))
    assert np.allclose(plain / attention.frequencies(long), factors)


def test_a_template_token_is_added_only_where_the_tokenizer_adds_it():
    single = [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]
    tokenizer = {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": []}}
    names = dict.fromkeys(special.KINDS) | {"bos": "<s>", "eos": "</s>"}
    adds = special._post_processed(tokenizer["post_processor"], names)
    assert adds.get("bos") is True and not adds.get("eos")


@pytest.mark.parametrize(
    "name, safe",
    [("a/b.json", True), ("../b", False), ("/etc/b", False), ("a\\..\\b", False), ("c:/b", False)],
)
def test_a_name_of_the_hub_stays_in_its_folder(name, safe):
    assert safe_name(name) == safe


def test_a_row_of_a_program_is_put_together_again():
    line = "    %7 = torch.aten.mul %5, %6 : !torch.vtensor"
    row = stitch.Row.of(line)
    assert (row.defines, row.names) == ("%7", ["%5", "%6"])
    assert row.line(0, 1, "%9", ["%x", "%y"], None) == line.replace("%7", "%9").replace(
        "%5, %6", "%x, %y"
    )


UNLIKE = [  # four blocks, of which one takes another operation
    "  func.func @f(%arg0: t) -> t {",
    *(
        line
        for block in range(4)
        for line in (
            f"    %w{block} = util.global.load @__auto.blk.{block}.w : t",
            f"    %c{block} = torch_c.from_builtin_tensor %w{block} : t",
        )
    ),
    *(
        f"    %{block} = torch.aten.{kind} %c{block}, %{block - 1 if block else 'arg0'} : t"
        for block, kind in enumerate(("mul", "mul", "add", "mul"))
    ),
    "    return %3 : t",
    "  }",
]


def test_a_program_without_equal_blocks_is_refused():
    with pytest.raises(stitch.Unlike, match="operations differ"):
        list(stitch.stitch("\n".join(UNLIKE), 8))
    equal = "\n".join(UNLIKE).replace("aten.add", "aten.mul")
    assert sum("aten.mul" in line for line in stitch.stitch(equal, 8)) == 8
    with pytest.raises(stitch.Unlike, match="weights of 0 blocks"):
        list(stitch.stitch(equal.replace("__auto.", ""), 8))


def test_an_index_that_leaves_its_folder_is_refused(tiny):
    index = tiny / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with pytest.raises(Refused, match="leaves its folder"):
        read_checkpoint(Checkpoint([tiny]))
