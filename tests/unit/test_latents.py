"""DeepSeek's latents, and weights of FP8: what is made of them, and what is refused."""

import json
import struct

import numpy as np
import pytest

import adapters
import checkpoints
import families
from ingot.base.refused import Refused
from ingot.driver.catalogue import found
from ingot.model import gpu_layout
from ingot.model.checkpoint import head_rows, scales
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import read_config
from ingot.model.features import ALL
from ingot.model.specs import parameters, specs_of
from ingot.model.tensors.dtypes import FLOATS, STORED
from ingot.parity import multiplied, scaled_weights, values
from ingot.parity.adapted import sources
from ingot.parity.made import Made

KV_B = "model.layers.2.self_attn.kv_b_proj.weight"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_STORE", str(tmp_path / "store"))


@pytest.fixture
def checkpoint(tmp_path):
    """checkpoint(name) is one of a name of families.SHAPES, and its config."""

    def made(name, **said):
        folder = checkpoints.variant(tmp_path / "m", name, tame=True, **said)
        return Checkpoint([folder]), read_config(folder / "config.json", can=ALL)

    return made


def floats(rows, spec):
    found = [np.frombuffer(bytes(read()), np.float32) for _, _, read in rows.blocks(spec)]
    return np.concatenate(found).reshape(spec.shape)


@pytest.mark.parametrize(
    "name", ["DeepSeek-V3", "DeepSeek-V3, FP8", "DeepSeek-V2-Lite", "Qwen3, FP8"]
)
def test_each_value_is_what_another_reading_makes_of_it(name, checkpoint):
    folder, config = checkpoint(name)
    others = sources(folder)
    parts = scaled_weights.of_heads(folder, others, values.values)
    with Rows(folder, config, "m") as rows:
        for spec in rows.specs("f32"):
            mine = [parts[spec.name]] if spec.part else [others[one] for one in spec.sources]
            wanted = np.concatenate([values.values(one, 0, one.shape[0]) for one in mine])
            found = floats(rows, spec)
            if spec.heads:
                order = values.row_order(spec.heads, config.head_dim, found.shape)
                found = found[order]
            assert np.array_equal(found.reshape(wanted.shape), wanted), spec.name
            assert isinstance(mine[0], Made) is (
                mine[0].dtype == "F8_E4M3" or spec.part is not None
            )
        mine = [one for one in specs_of(config, "f32") if one.part]
        names = {one.name.split(".")[2] for one in mine}
        assert names == ({"attn_k_b", "attn_v_b"} if config.latent else set())
        for one in mine:  # head by head
            places = [(first, count) for first, count, _ in head_rows.blocks(rows, one)]
            assert places == [(n * one.shape[1], one.shape[1]) for n in range(config.heads)]


def test_blocks_at_the_edges_of_a_weight_have_scales_of_their_own():
    codes = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7)
    factors = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    whole = scales.multiplied(codes, factors, (3, 3), 0)
    assert whole[0, 6] == 3 * scaled_weights.E4M3[6] and whole[4, 0] == 4 * scaled_weights.E4M3[28]
    apart = [scales.multiplied(codes[n : n + 2], factors, (3, 3), n) for n in (0, 2)]
    assert np.array_equal(np.concatenate(apart), whole[:4])


def test_blocks_are_known_by_config_json(checkpoint):
    assert multiplied.block_of(checkpoint("DeepSeek-V3, FP8")[0].folder) == (128, 128)


def test_no_blocks_are_known_of_floats(checkpoint):
    assert multiplied.block_of(checkpoint("Qwen3")[0].folder) is None


def rewritten(folder, change):
    """Each shard's header and data as change(header, data) leaves them."""
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8:start]), bytearray(raw[start:])
        change(header, data)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        index.unlink()
    for n, path in enumerate(sorted(folder.glob("*.safetensors"))):
        path.rename(folder / f"model-{n}.safetensors")


def lose(header, data):
    if f"{KV_B}_scale_inv" in header:
        checkpoints.cut_out(header, data, f"{KV_B}_scale_inv")


def reshape(header, data):
    if f"{KV_B}_scale_inv" in header:
        header[f"{KV_B}_scale_inv"]["shape"].reverse()


def rename(header, data):
    if f"{KV_B}_scale_inv" in header:
        header["model.layers.2.input_layernorm.weight_scale_inv"] = header.pop(f"{KV_B}_scale_inv")


def as_codes(header, data):
    if one := header.get(f"{KV_B}_scale_inv"):
        header["model.layers.2.x"] = {
            "dtype": "F8_E4M3",
            "shape": [3 * np.prod(one["shape"]).item()],
            "data_offsets": [
                one["data_offsets"][0] + np.prod(one["shape"]).item(),
                one["data_offsets"][1],
            ],
        }
        one["dtype"] = "F8_E4M3"
        one["data_offsets"] = [
            one["data_offsets"][0],
            header["model.layers.2.x"]["data_offsets"][0],
        ]


def put(name, raw):
    def change(header, data):
        if name in header:
            at = header[name]["data_offsets"][0]
            data[at : at + len(raw)] = raw

    return change


FAULTS = [
    (lose, "kv_b_proj.weight_scale_inv is in no shard"),
    (reshape, r"kv_b_proj.weight_scale_inv has shape \[3, 6\], expected \[6, 3\]"),
    (rename, "no such tensor is a DeepseekV3|is in no shard"),
    (as_codes, "kv_b_proj.weight_scale_inv has dtype F8_E4M3, expected a float"),
    (put(KV_B, b"\x7f"), "kv_b_proj.weight holds NaN; the checkpoint is damaged"),
    (put(f"{KV_B}_scale_inv", struct.pack("<f", np.inf)), "weight_scale_inv holds infinity"),
    (put(f"{KV_B}_scale_inv", struct.pack("<f", 3e38)), "kv_b_proj.weight holds infinity"),
]


@pytest.mark.parametrize("change, said", FAULTS)
def test_damaged_codes_and_scales_are_refused(change, said, checkpoint):
    folder, config = checkpoint("DeepSeek-V3, FP8")
    rewritten(folder.folder, change)
    with pytest.raises(Refused, match=said), Rows(Checkpoint([folder.folder]), config, "m") as rows:
        for spec in rows.specs("f32"):
            floats(rows, spec)


def test_codes_without_a_word_of_them_in_config_json_are_refused(checkpoint):
    folder, config = checkpoint("DeepSeek-V3, FP8")
    path = folder["config.json"]
    said = json.loads(path.read_bytes())
    del said["quantization_config"]
    checkpoints.write_json(path, said)
    config = read_config(path, can=ALL)
    with pytest.raises(Refused, match="dtype F8_E4M3"):
        Rows(folder, config, "m")


def test_layers_that_guess_are_left_out_and_others_behind_the_last_are_not(checkpoint):
    folder, config = checkpoint("DeepSeek-V3, FP8, guesses")
    with Rows(folder, config, "m") as rows:
        assert not [one.name for one in rows.specs("f16") if one.name.startswith("blk.4.")]
    path = folder["config.json"]
    said = json.loads(path.read_bytes()) | {"num_nextn_predict_layers": 0}
    checkpoints.write_json(path, said)
    with (
        pytest.raises(Refused, match=r"first model\.layers\.4\..*; no such tensor is"),
        Rows(folder, read_config(path, can=ALL), "m") as rows,
    ):
        rows.specs("f16")


# weights in billions, and bytes of cache that a token takes
PUBLISHED = {"DeepSeek-V3": (671.0, 70272), "DeepSeek-V2-Lite": (15.7, 31104)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_ones_have_their_numbers(name, tmp_path):
    billions, per_token = PUBLISHED[name]
    path = tmp_path / "config.json"
    checkpoints.write_json(path, checkpoints.llama_config(**families.PUBLISHED[name]))
    config = read_config(path, can=ALL)
    assert round(parameters(config) / 1e9, 1) == billions
    assert gpu_layout.kv_per_token(config) == per_token
    one, eight = (
        gpu_layout.gpu_layout(config, tp, 1, gpu_layout.VLLM, 141 << 30, 4096) for tp in (1, 8)
    )
    assert one.kv_per_token == eight.kv_per_token == per_token
    assert abs(one.weights - 2 * parameters(config)) < 0.002 * one.weights
    assert 1 / 8 < eight.weights / one.weights < 0.14


def test_an_adapter_of_what_a_latent_is_made_into_is_merged_in_both_parts(checkpoint):
    folder, config = checkpoint("DeepSeek-V3")
    before = scaled_weights.of_heads(folder, sources(folder), values.values)
    adapters.saved(folder.folder, adapters.pair(folder.folder, KV_B.removesuffix(".weight")))
    whole = Checkpoint([folder.folder])
    parts = scaled_weights.of_heads(whole, sources(whole), values.values)
    with Rows(whole, config, "m") as rows:
        mine = [spec for spec in rows.specs("f32") if spec.part and spec.source == KV_B]
        assert len(mine) == 2
        for spec in mine:
            found = floats(rows, spec).reshape(parts[spec.name].shape)
            assert np.array_equal(found, values.values(parts[spec.name], 0, len(found)))
            assert not np.array_equal(found, values.values(before[spec.name], 0, len(found)))


@pytest.mark.parametrize("said, names", [({"model_type": "kimi_k2"}, ["tokenizer.json"]), ({}, [])])
def test_who_took_its_classes_goes_the_upstream_way(said, names, tmp_path, capsys):
    folder = checkpoints.variant(tmp_path / "m", "DeepSeek-V3", tame=True, **said)
    names = ["config.json", "model.safetensors", *names]
    entry = found.entry("m", names, folder, {"path": str(folder)}, "M")
    assert (entry["architecture"], entry["way"]) == ("DeepseekV3ForCausalLM", "upstream")
    assert "so upstream tools write its files" in capsys.readouterr().err


def test_an_adapter_of_a_base_in_fp8_is_refused(checkpoint, monkeypatch):
    folder, config = checkpoint("Qwen3, FP8")
    with Rows(folder, config, "m") as rows:
        rows.loras = {"any": None}
        monkeypatch.setattr(Checkpoint, "__getitem__", lambda self, name: name)
        with pytest.raises(Refused, match="its base is FP8, expected floats"):
            rows.specs("f16")


def test_what_is_read_has_the_dtypes_that_its_config_says(checkpoint):
    folder, config = checkpoint("DeepSeek-V3, FP8")
    assert config.stored == FLOATS | {"F8_E4M3": STORED["F8_E4M3"]}
    found = read_checkpoint(folder, config.stored)
    weights = [name for name, one in found.items() if one.dtype == scales.CODES]
    assert len(weights) > 100 and "model.embed_tokens.weight" not in weights
    assert scales.shape_of(found[KV_B], config.scaled) == found[scales.name_of(KV_B)].shape
    assert np.isfinite(scales.of(found[scales.name_of(KV_B)])).all()
