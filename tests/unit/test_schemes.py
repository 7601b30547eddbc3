"""Quantised checkpoints: codes by their definition, sizes and refusals before anything is fetched."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import checkpoints
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.quantised import blocks, codes, mlx, mlx_folder, schemes, sizes, write
from ingot.model.config import read_config
from ingot.model.features import ALL
from ingot.model.tensors import few_bits
from ingot.parity import mlx_model, quantised_model, quantised_weights
from ingot.serving.vllm import plan
from ingot.serving.vllm import schemes as served


def e4m3(code):
    """By the OCP specification: bias 7, no infinity, all ones NaN."""
    exponent, fraction = code >> 3 & 15, code & 7
    value = math.ldexp(1 + fraction / 8, exponent - 7) if exponent else math.ldexp(fraction, -9)
    return math.copysign(value, -1 if code & 128 else 1)


def e2m1(code):
    return [0, 0.5, 1, 1.5, 2, 3, 4, 6][code & 7] * (-1 if code & 8 else 1)


def nearest(value, decoded, largest):
    """The code of the nearest value without a sign; of two the even one."""
    size = min(abs(value), largest)
    found = min(range(len(decoded)), key=lambda code: (abs(decoded[code] - size), code % 2))
    return found


@pytest.mark.parametrize(
    "encode, decode, count, sign, largest",
    [(few_bits.e4m3, e4m3, 127, 128, 448), (few_bits.e2m1, e2m1, 8, 8, 6)],
)
def test_a_value_becomes_the_nearest_code_and_a_tie_the_even_one(
    encode, decode, count, sign, largest
):
    decoded = [decode(code) for code in range(count)]
    middles = [(a + b) / 2 for a, b in pairwise(decoded)]
    beside = [
        float(np.nextafter(np.float32(one), np.float32(to))) for one in middles for to in (0, 9e9)
    ]
    random = np.random.default_rng(0).standard_normal(400) * largest
    values = np.float32([*decoded, *middles, *beside, *random, 1e-30, 449, 3e38])
    for signed, more in ((values, 0), (-values, sign)):
        found = encode(signed)
        for value, code in zip(signed, found, strict=True):
            expected = nearest(float(value), decoded, largest)
            assert code == expected + (sign if np.signbit(value) else 0), (value, code, more)


def test_codes_of_e4m3_are_the_values_of_the_specification():
    found = few_bits.of_e4m3(np.arange(256))
    for code in range(256):
        assert (math.isnan(found[code]) and code & 127 == 127) or found[code] == e4m3(code)


def test_int4_lies_with_its_first_column_lowest():
    numbers = np.arange(-8, 8, dtype=np.int8).reshape(1, 16)
    low, high = few_bits.eights(numbers)[0].view(np.uint32)
    assert [int(low) >> 4 * n & 15 for n in range(8)] == [*range(8)]
    assert [int(high) >> 4 * n & 15 for n in range(8)] == [*range(8, 16)]


@pytest.fixture(scope="module")
def config():
    return read_config(checkpoints.DEMO / "config.json", None, ALL)


@pytest.mark.parametrize("scheme", schemes.ALL)
def test_a_scheme_knows_itself_in_a_config(scheme, config):
    said = json.loads(json.dumps(schemes.ALL[scheme].config(["lm_head"])))
    how = schemes.ALL[scheme].like if scheme.startswith("w") else ""  # served as that one
    assert schemes.named(said) == (how or scheme)
    assert schemes.named({}) is None


@pytest.mark.parametrize(
    "scheme, bits",  # of a weight, scales counted, for rows of 4096
    [
        ("fp8", 8.004), ("fp8_block", 8.001), ("w8a8", 8.004), ("w4a16", 4.125), ("mxfp4", 4.25),
        ("nvfp4", 4.5), ("fp8_static", 8), ("w8a8_gptq", 8.004), ("w4a16_awq", 4.125), ("nvfp4_a4", 4.5),
    ],
)  # fmt: skip
def test_bits_of_a_weight(scheme, bits, config):
    size = sizes.of_layer(scheme, (4096, 4096), "BF16")
    assert size * 8 / 4096**2 == pytest.approx(bits, abs=0.001)
    assert 0 < sizes.per_weight(config, scheme) < 1.2


def test_what_is_left_whole_is_neither_linear_nor_small(config):
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & {*write.linear(config)}
    assert len(write.linear(config)) == 7 * config.layers
    moe = checkpoints.llama_config(**checkpoints.families.QWEN3_MOE)
    assert all(not name.endswith("mlp.gate.weight") for name in write.linear(of(moe)))


def of(said, folder=None):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "config.json")
        path.write_text(json.dumps({key: one for key, one in said.items() if one is not None}))
        return read_config(path, None, ALL)


def test_layers_that_a_server_joins_are_one_set():
    joined = [f"model.layers.0.self_attn.{one}_proj.weight" for one in "qkv"]
    assert len({write.set_of(name) for name in joined}) == 1
    experts = [
        f"model.layers.0.mlp.experts.{n}.{one}_proj.weight"
        for n in (0, 1)
        for one in ("gate", "up")
    ]
    assert len({write.set_of(name) for name in experts}) == 2
    assert write.set_of(joined[0]) != write.set_of("model.layers.1.self_attn.q_proj.weight")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    own = tmp_path_factory.mktemp("catalogue") / "mine.yaml"
    own.write_text(
        "models:\n"
        "  llama405b: {vllm: {device: sm90, max_model_len: 32768}}\n"
        "  demo: {vllm: {device: cpu}}\n"
    )
    return schema.load(ROOT, own)


def test_405b_in_fp8_fits_one_node_of_eight_gpus(catalogue):
    entry = catalogue["models"]["llama405b"]
    numbers = targets.parsed("artifacts/llama405b_tp8.fp8.vllm-slurm", catalogue)
    assert targets.why_not("artifacts/llama405b_tp8.fp8.vllm-slurm", catalogue) is None
    from ingot.driver.catalogue.model import planned

    settings = {**entry["vllm"], "memory": 80}
    whole = plan.planned(planned(entry), settings, 8, "bfloat16", "k")
    fp8 = plan.planned(planned(entry), settings, 8, "bfloat16", "k", scheme=numbers.variant)
    four = plan.planned(planned(entry), settings, 8, "bfloat16", "k", scheme="w4a16")
    assert (whole.nodes, fp8.nodes, four.nodes) == (2, 1, 1)
    assert fp8.kv_tokens > 300_000 and four.kv_tokens > 2 * fp8.kv_tokens
    # what vLLM's own classes hold on a rank: it widens scales of eight bits to float32
    assert fp8.weights == pytest.approx(51_289_170_140, rel=5e-4)
    assert four.weights == pytest.approx(26_946_349_148, rel=1e-5)


REFUSED = [
    ("demo.safetensors", "no scheme, expected one of fp8"),
    ("demo.int4.safetensors", "unknown variant int4, expected one of fp8"),
    ("demo_tp2.fp8.safetensors", "a server cuts it into ranks"),
    ("demo_tp1.fp8_static.vllm-slurm", "vLLM has no kernel for fp8_static on CPUs"),
    ("demo_tp1.w4a16_gptq.vllm-slurm", "models.demo.vllm.dtype: float32, expected bfloat16"),
    ("llama8b.w4a16_gptq.safetensors", "models.llama8b.calibration: missing, expected a text"),
    ("llama8b_tp1.nvfp4_a4.vllm-slurm", "models.llama8b.calibration: missing, expected a text"),
    ("demo_tp1.fp8_block.triton", "served by the LLM API alone; set models.demo.trtllm.backend"),
    ("demo_tp1.mxfp4.vllm-slurm", "vLLM has no kernel for mxfp4 on CPUs"),
    ("demo_tp1.w4a16.vllm-slurm", "models.demo.vllm.dtype: float32, expected bfloat16 or float16"),
    ("demo_tp1.fp8.rayserve", "expected llm alone for a quantised checkpoint"),
    ("demo.3bit.mlx", "unknown variant 3bit, expected one of 4bit, 8bit"),
    ("qwen3-gguf.fp8.safetensors", "unknown model"),
]


@pytest.mark.parametrize("target, said", REFUSED)
def test_a_target_that_cannot_be_is_a_line(target, said, catalogue):
    assert said in (targets.why_not(f"artifacts/{target}", catalogue) or "nothing")


def test_ranks_share_whole_groups(config):
    assert served.cut_group(config, "w4a16", 1) is None
    assert "expected a multiple of 128 for w4a16" in served.cut_group(config, "w4a16", 4)
    assert served.cut_group(config, "fp8", 4) is None
    few = replace(config, kv_heads=1, head_dim=128, heads=8, ffn=2048, hidden=1024)
    assert served.cut_group(few, "fp8_block", 2) is None  # a KV head on each
    joined = replace(few, architecture="Phi3ForCausalLM", kv_heads=2)
    assert served.cut_group(joined, "fp8_block", 2) is None
    said = served.cut_group(replace(joined, head_dim=64, heads=16), "fp8_block", 2)
    assert "would hold 64 channels of self_attn.qkv_proj" in (said or "")


@pytest.mark.parametrize(
    "target, gpu, said",
    [
        ("demo_tp2.fp8.triton", "sm90", None),
        ("demo_tp2.nvfp4_a4.triton", "sm100", None),
        ("demo_tp2.nvfp4_a4.triton", "sm90", "from compute capability 10.0 on, and sm90 has 9.0"),
        ("demo_tp2.fp8.triton", "sm80", "from compute capability 8.9 on"),
        ("demo_tp2.w8a8.triton", "sm90", "unknown variant w8a8"),  # it would take it for FP8
    ],
)
def test_the_llm_api_serves_what_tensorrt_llm_reads(target, gpu, said, catalogue):
    catalogue["models"]["demo"]["trtllm"] |= {"backend": "llmapi", "gpu": gpu}
    found = targets.why_not(f"artifacts/{target}", catalogue)
    assert said in found if said else found is None, found


@pytest.mark.parametrize("scheme", schemes.ALL)
def test_every_gpu_of_the_catalogue_serves_every_scheme_but_int8_on_the_newest(scheme, catalogue):
    for gpu in catalogue["gpus"].values():
        capability = gpu["compute_capability"]
        newest = scheme.startswith("w8a8") and float(capability) >= 10
        assert (served.no_kernel(scheme, capability) is None) != newest
    assert served.no_kernel("mxfp4", "7.5") and served.no_kernel("fp8", None, experts=True)


def test_shards_of_mlx_hold_five_gib_at_most(config, monkeypatch):
    tensors = mlx.tensors(config, 4, lambda name: "BF16")
    assert [*mlx.shards(tensors)] == ["model.safetensors"]
    monkeypatch.setattr(mlx, "SHARD", 1 << 20)
    files = mlx.shards(tensors)
    assert [one for held in files.values() for one in held] == tensors
    assert all(
        sum(one.nbytes for one in held) <= 1 << 20 or len(held) == 1 for held in files.values()
    )
    said = json.loads(
        blocks.index({key: [p for one in held for p in one.parts] for key, held in files.items()})
    )
    parts = [part[0] for one in tensors for part in one.parts]
    assert said["weight_map"].keys() == {*parts} and {*said["weight_map"].values()} == {*files}
    assert said["metadata"]["total_size"] == sum(one.nbytes for one in tensors)
    assert next(iter(files)) == f"model-00001-of-{len(files):05d}.safetensors"


def test_a_config_for_mlx_says_which_layers_have_other_bits(config):
    said = mlx_folder.document(
        Checkpoint([checkpoints.DEMO]), [checkpoints.DEMO / "generation_config.json"], config, {}, 4
    )
    assert said["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert said["eos_token_id"] == [1017, 1020]  # generation_config.json's


def test_minus_zero_has_the_code_of_zero():
    """So has compressed-tensors; pruned weights, and small ones in float16, are full of it."""
    values = np.zeros((1, 32), np.float32)
    values[0, :3] = [-0.0, 1, -1e-9]
    for code in (codes.mxfp4, codes.nvfp4):
        found, _ = code(values, 1.0, "F32", "F32")
        assert found[0, 0] & 15 == 0 and found[0, 1] & 15 == 8


def test_a_scale_of_nothing_is_the_smallest_step_of_its_dtype():
    zeros = np.zeros((2, 128), np.float32)
    for stored, least in (("BF16", 2**-7), ("F16", 2**-10), ("F32", 2**-23)):
        assert codes.scales_of(np.zeros(1, np.float32), 448, stored) == least
        found, scales = codes.int4_groups(zeros, 1.0, stored, "F32")
        assert (found.view(np.uint32) == 0x88888888).all()  # eight times zero
        assert scales.nbytes == 2 * (4 if stored == "F32" else 2)


def test_blocks_at_the_edges_of_a_tensor_are_smaller():
    values = np.arange(200 * 300, dtype=np.float32).reshape(200, 300) - 30000
    found, scales = codes.fp8_blocks(values.view(np.uint32), 1.0, "F32", "F32")
    assert found.shape == (200, 300)
    expected = [
        [np.abs(values[r : r + 128, c : c + 128]).max() / np.float32(448) for c in (0, 128, 256)]
        for r in (0, 128)
    ]
    assert scales.view(np.float32).tolist() == np.float32(expected).tolist()


def test_a_part_is_as_large_as_its_values():
    assert blocks.nbytes(("x", "F8_E4M3", (3, 5))) == 15
    assert blocks.nbytes(("x", "I64", (2,))) == 16


def test_what_a_library_says_is_one_line(tmp_path):
    with (
        pytest.raises(Refused, match=r"cannot load it \(KeyError: 'x'\)"),
        mlx_model.understood(tmp_path),
    ):
        raise KeyError("x")


@pytest.mark.parametrize(
    "name, whole",
    [
        ("model.embed_tokens.weight", True),
        ("lm_head.weight", True),
        ("language_model.model.embed_tokens.weight", True),
        ("model.layers.0.mlp.gate.weight", True),
        ("model.layers.0.block_sparse_moe.gate.weight", True),
        ("vision_tower.encoder.layers.0.mlp.fc1.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", False),
        ("model.layers.0.mlp.experts.3.down_proj.weight", False),
        ("model.layers.0.block_sparse_moe.experts.0.w1.weight", False),
    ],
)
def test_the_verification_knows_by_itself_what_stays_whole(name, whole):
    assert bool(quantised_weights.WHOLE.fullmatch(name)) == whole


def test_a_quantised_checkpoint_says_so(tmp_path):
    assert not quantised_model.is_quantised(checkpoints.DEMO / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"x": 1}}))
    assert quantised_model.is_quantised(tmp_path / "config.json")
