"""Experts of a layer in one tensor, as gpt-oss has them: what is written of them, and what is refused."""

import json

import numpy as np
import pytest

import checkpoints
import families
from conftest import ROOT
from ingot.base import stream
from ingot.base.refused import Refused
from ingot.model.checkpoint import stacked
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.features import ALL
from ingot.model.gpu_layout import VLLM, gpu_layout
from ingot.model.specs import parameters
from ingot.model.tensors import few_bits
from ingot.parity import joined_experts

BFLOAT16 = "gpt-oss, bfloat16 experts, transformers 5"
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
SCALES = "model.layers.1.mlp.experts.down_proj_scales"


def written(folder):
    """By the name in GGUF: shape, type, bytes."""
    config = read_config(folder / "config.json", can=ALL)
    found = {}
    with Rows(Checkpoint([folder]), config, "test") as rows:
        for spec in rows.specs("f32"):
            parts = [bytes(read()) for _, _, read in rows.blocks(spec)]
            found[spec.name] = (spec.shape, spec.type, b"".join(parts))
        rows.finish()
    return found


def values(block):
    """The 32 of a block of ggml's: a scale, then codes n and n + 16 in each byte."""
    codes = [byte & 15 for byte in block[1:]] + [byte >> 4 for byte in block[1:]]
    return [(-1) ** (code >> 3) * E2M1[code & 7] * 2.0 ** (block[0] - 127) for code in codes]


@pytest.mark.parametrize("name", ["gpt-oss", BFLOAT16])
def test_two_who_share_no_code_make_the_same_values_of_them(name, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CAST_BLOCK", 1000)  # some rows of an expert a block
    folder = checkpoints.variant(tmp_path / "m", name, tame=True)
    theirs = joined_experts.sources(Checkpoint([folder]))
    ours = written(folder)
    assert {*theirs} == {name for name in ours if "_exps." in name} and len(theirs) == 4 * 6
    for name, source in theirs.items():
        shape, kind, data = ours[name]
        assert shape == source.whole
        if kind.name == "MXFP4":
            blocks = np.frombuffer(data, np.uint8).reshape(-1, 17)[:500].tolist()
            mine = np.array([values(block) for block in blocks]).ravel()
        else:
            mine = np.frombuffer(data, np.float32)
        wanted = source.floats(0, source.shape[0]).ravel()
        assert np.array_equal(mine, wanted[: mine.size]) and mine.size > 1000
        middle = source.floats(3, 5)  # rows that begin inside an expert, or experts' biases
        assert np.array_equal(middle.ravel(), wanted[3 * source.shape[1] : 5 * source.shape[1]])


def test_ggmls_blocks_hold_each_code_and_each_scale_in_its_place():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (3, 32), np.uint8)
    scales = rng.integers(0, 255, (3, 2), np.uint8)
    found = few_bits.mxfp4_blocks(codes, scales)
    for row in range(3):
        said = [nibble for byte in codes[row].tolist() for nibble in (byte & 15, byte >> 4)]
        for block in range(2):
            scale, *packed = found[row, block].tolist()
            assert scale == scales[row, block]
            both = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
            assert both == said[32 * block : 32 * block + 32]


def changed(folder, name, raw=None, dtype=None):
    """Write one tensor's bytes, or another dtype of the same size, into its shard."""
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        if name not in header:
            continue
        at = start + header[name]["data_offsets"][0]
        if raw:
            data[at : at + len(raw)] = raw
        if dtype:
            header[name] |= {"dtype": dtype[0], "shape": dtype[1]}
            text = json.dumps(header).encode().ljust(start - 8)
            data[:start] = len(text).to_bytes(8, "little") + text
        path.write_bytes(data)


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    folder = checkpoints.variant(tmp_path / "m", "gpt-oss", tame=True)
    changed(folder, SCALES, bytes([stacked.MOST + 1]))
    with pytest.raises(
        Refused, match=f"tensor {SCALES} holds NaN or infinity; the checkpoint is damaged"
    ):
        written(folder)


@pytest.mark.parametrize(
    "name, dtype, said",
    [
        ("model.layers.0.self_attn.sinks", "U8", "U8, expected a float"),
        (SCALES, None, "BF16, expected U8"),
    ],
)
def test_bytes_in_the_place_of_values_are_refused_and_values_in_that_of_bytes(
    name, dtype, said, tmp_path, monkeypatch
):
    right = families.more
    monkeypatch.setattr(families, "more", lambda config: wrong(right(config)))

    def wrong(found):
        return found | {name: (found[name][0], dtype)}

    folder = checkpoints.variant(tmp_path / "m", "gpt-oss", tame=True)
    with pytest.raises(
        Refused, match=f"tensor {name} has dtype {said}; the checkpoint and its config"
    ):
        written(folder)


def test_scales_of_another_shape_are_refused(tmp_path):
    folder = checkpoints.variant(tmp_path / "m", "gpt-oss", tame=True)
    changed(folder, SCALES, dtype=("F16", [6, 256, 6]))
    with pytest.raises(
        Refused, match=rf"{SCALES} has shape \[6, 256, 6\], expected \[6, 256, 12\]"
    ):
        written(folder)


def test_a_config_without_its_way_of_quantising_does_not_belong_to_the_codes(tmp_path):
    folder = checkpoints.variant(tmp_path / "m", "gpt-oss", tame=True)
    config = json.loads((folder / "config.json").read_bytes())
    del config["quantization_config"]
    checkpoints.write_json(folder / "config.json", config)
    with pytest.raises(Refused, match="_blocks has dtype U8, expected one of BF16, F16, F32"):
        written(folder)


def test_values_where_config_says_codes_are_refused_with_what_to_do(tmp_path):
    """As a merge may leave config.json."""
    folder = checkpoints.variant(tmp_path / "m", "gpt-oss, bfloat16 experts", tame=True)
    config = json.loads((folder / "config.json").read_bytes())
    config["quantization_config"] = families.GPT_OSS["quantization_config"]
    checkpoints.write_json(folder / "config.json", config)
    with pytest.raises(Refused, match="gate_up_proj is BF16; take quantization_config out"):
        written(folder)


def test_types_of_libllama_are_refused_of_codes_by_the_step_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from quantize_gguf import quantize_gguf

    folder = checkpoints.variant(tmp_path / "m", "gpt-oss", tame=True)
    words = {"quant": ["q4_k_m"], "name": "A", "pre_tokenizer": "llama-bpe"}
    with pytest.raises(Refused, match="its experts are MXFP4 already, expected none of libllama"):
        quantize_gguf(checkpoint=Checkpoint([folder]), gguf=tmp_path / "m.gguf", **words)


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss, bfloat16 experts"])
def test_a_layout_counts_the_experts(name, tmp_path):
    folder = checkpoints.variant(tmp_path / "m", name, tame=True)
    config = read_config(folder / "config.json", can=ALL)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    one, two = (gpu_layout(config, tp, 1, VLLM, 1 << 40, 512).weights for tp in (1, 2))
    assert abs(one - size) < 0.02 * size and 0.5 < two / one < 0.52


def test_each_published_size_has_the_weights_and_the_bytes_of_the_hub(tmp_path):
    """Those of openai/gpt-oss-20b and gpt-oss-120b, as the hub counts them."""
    for layers, experts, weights in ((24, 32, 20_914_757_184), (36, 128, 116_829_156_672)):
        said = checkpoints.llama_config(**families.GPT_OSS | {
            "num_hidden_layers": layers, "num_local_experts": experts, "hidden_size": 2880,
            "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
            "vocab_size": 201088, "layer_types": families.GPT_OSS["layer_types"][:2] * (layers // 2),
        })  # fmt: skip
        checkpoints.write_json(tmp_path / "config.json", said)
        config = read_config(tmp_path / "config.json", can=ALL)
        assert parameters(config) == weights
