"""TensorRT-LLM checkpoints: ModelOpt's own tensors, a record of every value, refusals in one line."""

import json
import re
import shutil
import struct
import subprocess
from math import prod

import numpy as np
import pytest

import checkpoints
import faults
from conftest import ROOT
from ingot.model.checkpoint.safetensors import read_header
from ingot.model.tensors.dtypes import FLOATS, QUANTISED

DEMO = checkpoints.DEMO
PROMPTS = DEMO / "prompts.txt"
ORACLE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from quantize_trtllm import export
from ingot.model.checkpoint.files import Checkpoint
from ingot.formats.tensorrt.trtllm import Mapping

for checkpoint, tp, pp, place in json.loads(sys.argv[2]):
    Path(place).mkdir()
    export(Checkpoint([Path(checkpoint)]), [], None, "f16", Mapping(tp, pp), Path(place))
"""


def llama3(folder, **changes):
    """Grouped queries and no scaling; KV heads fewer than some tensor parallel sizes."""
    return checkpoints.llama31(folder, num_hidden_layers=4, num_key_value_heads=2, **changes)


KINDS = {
    "llama2": lambda folder: checkpoints.llama31(
        folder, num_key_value_heads=8, rope_theta=10000.0, rms_norm_eps=1e-6
    ),
    "llama3": lambda folder: llama3(folder),
    "llama31": lambda folder: checkpoints.llama31(folder, num_hidden_layers=4),
    "nemo": lambda folder: checkpoints.nemo(folder),
    "qwen2": lambda folder: checkpoints.variant(folder, "Qwen2, tied"),
    "qwen3": lambda folder: checkpoints.variant(folder, "Qwen3"),
    "mixtral": lambda folder: checkpoints.variant(folder, "Mixtral"),
    "mixtral11": lambda folder: checkpoints.variant(folder, "Mixtral, eleven experts"),
    "padded": lambda folder: checkpoints.llama31(
        folder, vocab_size=130, bos_token_id=1, eos_token_id=2, num_hidden_layers=2
    ),
}
CASES = [  # kind, tp, pp: 76 rank files
    ("llama2", 1, 1),
    ("llama2", 2, 1),
    ("llama3", 4, 1),  # 2 KV heads: each is on two ranks
    ("llama3", 8, 1),  # and on four
    ("llama31", 1, 1),
    ("llama31", 2, 1),
    ("llama31", 4, 1),
    ("llama31", 2, 2),
    ("nemo", 1, 1),
    ("nemo", 2, 1),
    ("qwen2", 1, 1),
    ("qwen2", 4, 1),
    ("qwen2", 8, 1),  # 4 KV heads
    ("qwen3", 1, 1),
    ("qwen3", 4, 1),
    ("qwen3", 1, 3),
    ("mixtral", 1, 1),
    ("mixtral", 2, 1),
    ("mixtral", 4, 1),  # ModelOpt pads the experts themselves, where ranks do not divide them
    ("mixtral", 2, 3),
    ("mixtral11", 1, 1),
    ("padded", 4, 1),  # 33 rows a rank, the last has 31
    ("padded", 8, 1),  # 17 rows a rank, the last has 11
]


def convert(run, checkpoint, out, *flags):
    words = ("--checkpoint", checkpoint, *flags, "--trtllm-checkpoint", out)
    return run("convert", "safetensors_to_trtllm.py", *words)


@pytest.fixture
def verify(reading, digests):
    """verify(run, checkpoint, built, record, *asked): `asked` is what its maker was asked for."""

    def verified(run, checkpoint, built, record, *asked, toolchain="convert"):
        dtype = asked[asked.index("--dtype") + 1] if "--dtype" in asked else "f16"
        words = (*digests(checkpoint, dtype), *reading(checkpoint), "--trtllm-checkpoint", built)
        words = (*words, *(("--checkpoint", checkpoint) if "--quant" in asked else ()))
        return run(toolchain, "verify_trtllm.py", *words, "--record", record, *asked)

    return verified


def differing(ours, theirs):
    """The names of the tensors that are not bit for bit the same."""
    ours, theirs = (read_header(path, FLOATS | QUANTISED) for path in (ours, theirs))
    assert set(ours) == set(theirs)

    def content(tensor, mine=False):
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            raw = file.read(tensor.nbytes)
        if mine and tensor.name.endswith("router.weight"):
            # theirs was rounded to float16 before
            raw = np.frombuffer(raw, np.float32).astype(np.float16).astype(np.float32).tobytes()
        return tensor.dtype, tensor.shape, raw

    return [name for name in ours if content(ours[name], True) != content(theirs[name])]


@pytest.mark.slow
def test_every_tensor_of_every_rank_is_modelopts_bit_for_bit(ok, python, verify, tmp_path):
    places = {kind: make(tmp_path / kind) for kind, make in KINDS.items()}
    asked = [
        [str(places[k]), tp, pp, str(tmp_path / f"their_{k}_{tp}_{pp}")] for k, tp, pp in CASES
    ]
    command = [python("modelopt"), "-c", ORACLE, ROOT / "scripts", json.dumps(asked)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, timeout=900)
    files = 0
    for kind, tp, pp in CASES:
        ours, theirs = tmp_path / f"our_{kind}_{tp}_{pp}", tmp_path / f"their_{kind}_{tp}_{pp}"
        convert(ok, places[kind], ours, "--tp", tp, "--pp", pp)
        for rank in range(tp * pp):
            name = f"rank{rank}.safetensors"
            assert differing(ours / name, theirs / name) == [], (kind, tp, pp, rank)
            files += 1
        verify(ok, places[kind], ours, tmp_path / "record.json", "--tp", tp, "--pp", pp)
        agree(ours, theirs)
    assert files == sum(tp * pp for _, tp, pp in CASES) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("kind, tp", [("mixtral", 8), ("mixtral11", 4)])
def test_experts_that_ranks_do_not_divide_are_verified(kind, tp, ok, verify, tmp_path):
    place = KINDS[kind](tmp_path / kind)
    convert(ok, place, tmp_path / "ours", "--tp", tp)
    verify(ok, place, tmp_path / "ours", tmp_path / "record.json", "--tp", tp)
    checks = json.loads((tmp_path / "record.json").read_bytes())["checks"]
    assert checks["ranks"] == tp and checks["values"] > 10**6


def agree(ours, theirs):
    """The settings of both config.json that decide what is computed."""
    ours, theirs = (json.loads((f / "config.json").read_bytes()) for f in (ours, theirs))
    keys = set(theirs) & set(ours) - {"logits_dtype", "quantization"}
    assert {"rotary_base", "mapping", "head_size", "norm_epsilon", "vocab_size"} <= keys
    for key in keys:
        assert (ours[key] or None) == (theirs[key] or None), key


@pytest.mark.parametrize("spelling", [4, 5])
def test_both_spellings_of_config_json_give_the_same_settings(spelling, ok, tmp_path):
    folder = checkpoints.llama31(tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_bytes())
    if spelling == 5:
        config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": 500000.0}
        config.pop("rope_theta")
        config["dtype"] = config.pop("torch_dtype")
        checkpoints.write_json(folder / "config.json", config)
    convert(ok, folder, tmp_path / "out")
    told = json.loads((tmp_path / "out/config.json").read_bytes())
    assert told["rotary_base"] == 500000.0
    assert told["rotary_scaling"] == checkpoints.LLAMA3_ROPE


@pytest.mark.parametrize(
    "flags",
    [
        ("--tp", 8),
        ("--tp", 16),
        ("--tp", 2, "--pp", 2),
        ("--tp", 4, "--embedding", "whole"),
        ("--tp", 4, "--embedding", "columns"),
        ("--tp", 2, "--dtype", "bf16"),
        ("--tp", 2, "--dtype", "f32"),
    ],
)
def test_the_record_says_that_the_merged_ranks_are_the_source(flags, ok, verify, tmp_path):
    convert(ok, DEMO, tmp_path / "out", *flags)
    verify(ok, DEMO, tmp_path / "out", tmp_path / "record.json", *flags)
    checks = json.loads((tmp_path / "record.json").read_text())["checks"]
    assert checks["tensors"] >= 39
    assert checks["ranks"] == (prod(flags[1:4:2]) if "--pp" in flags else flags[1])
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "out", check=True)


def test_tied_embeddings_become_the_head_too(ok, verify, tmp_path):
    folder = checkpoints.tied(tmp_path / "checkpoint")
    convert(ok, folder, tmp_path / "out", "--tp", 2)
    verify(ok, folder, tmp_path / "out", tmp_path / "record.json", "--tp", 2)
    with_head = read_header(tmp_path / "out/rank1.safetensors")
    assert (
        with_head["lm_head.weight"].shape == with_head["transformer.vocab_embedding.weight"].shape
    )


def test_padding_is_zero_and_counted(ok, verify, tmp_path):
    folder = KINDS["padded"](tmp_path / "checkpoint")
    convert(ok, folder, tmp_path / "out", "--tp", 8)
    verify(ok, folder, tmp_path / "out", tmp_path / "record.json", "--tp", 8)
    checks = json.loads((tmp_path / "record.json").read_text())["checks"]
    assert checks["rows_of_padding"] == 2 * (8 * 17 - 130)


def to_quantise(tmp_path, kind=""):
    """A checkpoint of tame weights that groups of 128 divide, and texts beside it."""
    folder = tmp_path / "checkpoint"
    if kind:
        checkpoints.variant(folder, kind, tame=True)
    else:
        checkpoints.llama31(folder, intermediate_size=512)
        config = json.loads((folder / "config.json").read_bytes())
        checkpoints.write_weights(folder, config, "BF16", "BF16", 2, tame=True)
    (tmp_path / "texts").write_text("".join(PROMPTS.read_text().splitlines(True)[:4]))
    return folder


RANDOM = ("--limit", "mean_kl=2")  # whose weights lose more than a trained model's


@pytest.mark.slow
@pytest.mark.parametrize("quant, algorithm, kind", [
    ("fp8", "FP8", "Qwen3"), ("int8_sq", "W8A8_SQ_PER_CHANNEL", "Qwen2"), ("int4_awq", "W4A16_AWQ", ""),
])  # fmt: skip
def test_a_quantised_checkpoint_is_within_half_a_step_of_its_source(
    quant, algorithm, kind, ok, peers, step, verify, tmp_path
):
    folder, asked = to_quantise(tmp_path, kind), ("--quant", quant, "--tp", 2)
    ok(
        "modelopt", "quantize_trtllm.py", "--checkpoint", folder, "--calibration",
        tmp_path / "texts", "--quant", quant, "--tp", 2, "--trtllm-checkpoint", tmp_path / "out",
    )  # fmt: skip
    verify(
        ok,
        folder,
        tmp_path / "out",
        tmp_path / "record.json",
        *asked,
        *peers(folder)[2:],
        *RANDOM,
        toolchain="transformers",
    )
    told = json.loads((tmp_path / "out/config.json").read_bytes())
    assert told["quantization"]["quant_algo"] == algorithm
    checks = json.loads((tmp_path / "record.json").read_text())["checks"]
    assert checks["quant_algo"] == algorithm
    assert 1e-5 < checks["numbers"]["mean_kl"] < checks["numbers"]["limits"]["mean_kl"]
    whole = shutil.copytree(tmp_path / "out", tmp_path / "whole")
    with (tmp_path / "out/rank0.safetensors").open("r+b") as file:  # a weight off by some steps
        tensor = read_header(tmp_path / "out/rank0.safetensors", FLOATS | QUANTISED)
        place = tensor["transformer.layers.0.mlp.proj.weight"].offset + 7
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x33]))
    faults.reseal(tmp_path / "out")
    done = verify(refused(step), folder, tmp_path / "out", tmp_path / "again.json", *asked)
    assert "half a step at most" in done
    for scale in [name for name in tensor if name.startswith("transformer.layers.1.mlp.fc.")]:
        if scale.endswith(".weight"):
            continue

        def poison(header, data, scale=scale):
            begin, end = header[scale]["data_offsets"]
            data[begin:end] = b"\xff" * (end - begin)  # NaN

        copy = shutil.copytree(whole, tmp_path / scale)
        rewrite(copy / "rank0.safetensors", poison)
        faults.reseal(copy)
        done = verify(refused(step), folder, copy, tmp_path / "again.json", *asked)
        assert "values that are no scale" in done, scale


@pytest.mark.slow
def test_scales_so_coarse_that_all_weights_are_zero_are_refused(ok, step, verify, tmp_path):
    folder, asked = to_quantise(tmp_path), ("--quant", "int8_sq")
    ok(
        "modelopt", "quantize_trtllm.py", "--checkpoint", folder, "--calibration",
        tmp_path / "texts", "--quant", "int8_sq", "--tp", 1, "--trtllm-checkpoint",
        tmp_path / "deep" / "out",
    )  # fmt: skip

    def coarse(header, data):
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if name.endswith("mlp.fc.weight"):
                data[begin:end] = bytes(end - begin)
            if name.endswith("mlp.fc.weights_scaling_factor"):
                values = np.frombuffer(data[begin:end], "<f4") * np.float32(1000)
                data[begin:end] = values.tobytes()

    rewrite(tmp_path / "deep/out/rank0.safetensors", coarse)
    faults.reseal(tmp_path / "deep/out")
    done = verify(refused(step), folder, tmp_path / "deep/out", tmp_path / "record.json", *asked)
    assert "its scales are too coarse" in done


@pytest.mark.slow
def test_groups_that_do_not_divide_are_refused_before_modelopt_is_loaded(step, tmp_path):
    done = step(
        "modelopt", "quantize_trtllm.py", "--checkpoint", DEMO, "--calibration", PROMPTS,
        "--quant", "int4_awq", "--tp", 4, "--trtllm-checkpoint", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(
        r".*config\.json: 64 feed-forward channels of a rank do not come in groups of 128.*\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    "flags, reason",
    [
        (("--tp", 3), "16 attention heads cannot be split over 3 ranks; choose 2"),
        (("--tp", 2, "--pp", 3), "4 layers cannot be split over 3 pipeline stages; choose 2"),
        (("--tp", 32), "16 attention heads cannot be split over 32 ranks; choose 16"),
    ],
)
def test_a_size_that_does_not_fit_is_refused_with_the_nearest(flags, reason, step, tmp_path):
    done = convert(step, DEMO, tmp_path / "out", *flags)
    assert done.returncode == 1
    assert done.stderr == f"{DEMO / 'config.json'}: {reason}\n"
    assert not (tmp_path / "out").exists()


# Broken checkpoints


def refused(step):
    """Runs a step that must end with one line, and returns it."""

    def run(*arguments, **options):
        done = step(*arguments, **options)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    return run


def rewrite(path, change):
    """The same safetensors file with its header and data changed by change(header, data)."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def settings(**changes):
    def change(folder):
        path = folder / "config.json"
        config = json.loads(path.read_bytes())
        for key, value in changes.items():
            where, _, key = key.rpartition("__")
            (config[where] if where else config)[key] = value
        path.write_text(json.dumps(config))

    return change


def tensors(change):
    return lambda folder: rewrite(folder / "rank1.safetensors", change)


def swapped(header, data):
    a, b = (header[f"transformer.layers.0.mlp.{name}.weight"] for name in ("fc", "gate"))
    a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]


def flipped(header, data):
    data[header["lm_head.weight"]["data_offsets"][0] + 1] ^= 0x10


def added(header, data):
    place = len(data)
    data += bytes(16)
    entry = {"dtype": "F16", "shape": [8], "data_offsets": [place, place + 16]}
    header["transformer.layers.0.attention.qkv.bias"] = entry


def reshaped(header, data):
    header["transformer.layers.1.attention.qkv.weight"]["shape"].reverse()
    header["transformer.layers.1.attention.dense.weight"]["shape"].reverse()


BROKEN = {
    "a rank is absent": (
        lambda folder: (folder / "rank1.safetensors").unlink(),
        "rank1.safetensors: missing, expected 2 ranks",
    ),
    "a rank too many": (
        lambda folder: shutil.copy(folder / "rank0.safetensors", folder / "rank2.safetensors"),
        "rank2.safetensors: one too many, expected 2 ranks",
    ),
    "a rank cut short": (
        lambda folder: (folder / "rank1.safetensors").write_bytes(
            (folder / "rank1.safetensors").read_bytes()[:-100]
        ),
        "was cut short",
    ),
    "a tensor is absent": (
        tensors(lambda h, data: checkpoints.cut_out(h, data, "transformer.ln_f.weight")),
        "tensor transformer.ln_f.weight is missing, expected by config.json",
    ),
    "two tensors in one place": (
        tensors(lambda header, data: header.update(odd=header["transformer.ln_f.weight"])),
        "overlap",
    ),
    "a tensor too many": (
        tensors(added),
        "tensor transformer.layers.0.attention.qkv.bias is not expected by config.json",
    ),
    "no activation": (settings(hidden_act=None), "hidden_act is None, expected 'silu'"),
    "an unknown key": (settings(qk_layernorm=True), "qk_layernorm is no key that we write"),
    "another architecture": (
        settings(architecture="MistralForCausalLM"),
        "architecture is MistralForCausalLM, expected LlamaForCausalLM by transformers",
    ),
    "half a layer": (settings(num_hidden_layers=2.5), "num_hidden_layers is 2.5, expected a number"),
    "a list": (settings(quantization=["FP8"]), "quantization is ['FP8'], expected one without"),
    "a quantised cache": (
        settings(quantization__kv_cache_quant_algo="INT8"),
        "expected one without a KV cache's",
    ),
    "context parallel": (settings(mapping__cp_size=2), "'pp_size': 1}; build it again"),
    "a shape turned": (reshaped, None),
    "world size": (settings(mapping__world_size=4), "expected {'world_size': 2, 'tp_size': 2,"),
    "no mapping": (settings(mapping=None), "mapping.tp_size is None, expected a number from 1"),
    "heads": (settings(num_attention_heads=8), "qkv.weight is F16 [512, 512], expected F16 [384"),
    "no rotary base": (settings(rotary_base=None), "rotary_base is None, expected a number"),
    "rotary base": (settings(rotary_base=10000.0), "rotary_base is 10000.0, expected 500000.0"),
    "no rope scaling": (settings(rotary_scaling=None), "whose frequencies are not those of"),
    "another rope scaling": (settings(rotary_scaling__factor=16.0), "whose frequencies are not those of"),
    "an attention factor": (settings(rotary_scaling__attention_factor=1.2), "and nothing else"),
    "two rope types": (settings(rotary_scaling__type="linear"), "and nothing else"),
    "half a rope scaling": (settings(rotary_scaling={"factor": 8}), "expected rope_type llama3"),
    "activation": (settings(hidden_act="gelu"), "hidden_act is 'gelu', expected 'silu'"),
    "quantisation": (settings(quantization__quant_algo="NVFP4"), "quant_algo is NVFP4, expected"),
    "dtype": (settings(dtype="int8"), "dtype is int8, expected one of float16"),
    "gate and up swapped": (
        tensors(swapped),
        "model.layers.0.mlp.gate_proj.weight is not the checkpoint's",
    ),
    "a bit flipped": (tensors(flipped), "tensor lm_head.weight is not the checkpoint's"),
    "not JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json: not JSON",
    ),
}  # fmt: skip
BROKEN["a shape turned"] = (tensors(reshaped), "transformer.layers.1.attention.dense.weight is F16")


@pytest.fixture(scope="module")
def whole(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "demo_tp2.trtllm-ckpt"
    subprocess.run(
        [python("convert"), ROOT / "scripts/safetensors_to_trtllm.py", "--checkpoint", DEMO,
         "--tp", "2", "--trtllm-checkpoint", folder], check=True,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_refused_in_one_line(case, whole, step, verify, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    breaks, reason = BROKEN[case]
    breaks(tmp_path / "out")
    faults.reseal(tmp_path / "out")
    said = verify(refused(step), DEMO, tmp_path / "out", tmp_path / "record.json", "--tp", 2)
    assert reason in said
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize("asked, said", [
    (("--tp", 2, "--dtype", "bf16"), "dtype is float16, expected bfloat16 as asked for"),
    (("--tp", 4), "tp_size is 2, expected 4 as asked for"),
    (("--tp", 2, "--pp", 2), "pp_size is 1, expected 2 as asked for"),
    (("--tp", 2, "--embedding", "columns"), "the embedding's layout is rows, expected columns"),
    (("--tp", 2, "--quant", "fp8"), "quant_algo is None, expected FP8 as asked for"),
])  # fmt: skip
def test_a_checkpoint_that_is_not_the_one_asked_for_is_refused(
    asked, said, whole, step, verify, tmp_path
):
    assert said in verify(refused(step), DEMO, whole, tmp_path / "record.json", *asked)


def test_a_file_changed_after_it_was_sealed_is_refused(whole, step, verify, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    rewrite(tmp_path / "out/rank1.safetensors", flipped)
    said = verify(refused(step), DEMO, tmp_path / "out", tmp_path / "record.json", "--tp", 2)
    assert "its bytes are not those of SHA256SUMS" in said


def test_values_of_the_source_are_found_at_the_places_that_upstream_documents(whole):
    """The names' trap: fc is gate_proj, gate is up_proj, qkv has a rank's q, k and v in that order."""
    source = {}
    for path in DEMO.glob("model-*.safetensors"):
        source |= read_header(path)

    def rows(tensor, first, last):
        columns = tensor.shape[1]
        kind = "<u2"
        raw = np.fromfile(
            tensor.path, kind, (last - first) * columns, offset=tensor.offset + first * columns * 2
        )
        if tensor.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float16)
        return raw.view(np.float16)

    rank = read_header(whole / "rank1.safetensors")
    at, there = "transformer.layers.0.", "model.layers.0."
    qkv = rank[f"{at}attention.qkv.weight"]
    for name, place, first, count in (
        ("q", 0, 256, 256),
        ("k", 256, 128, 128),
        ("v", 384, 128, 128),
    ):
        wanted = rows(source[f"{there}self_attn.{name}_proj.weight"], first, first + count)
        assert np.array_equal(rows(qkv, place, place + count), wanted), name
    for ours, theirs in (("fc", "gate_proj"), ("gate", "up_proj")):
        wanted = rows(source[f"{there}mlp.{theirs}.weight"], 128, 256)
        assert np.array_equal(rows(rank[f"{at}mlp.{ours}.weight"], 0, 128), wanted), ours


def test_a_vocabulary_smaller_than_the_ranks_is_padded_too(ok, verify, tmp_path):
    folder = checkpoints.llama31(tmp_path / "checkpoint", vocab_size=5, num_hidden_layers=2)
    convert(ok, folder, tmp_path / "out", "--tp", 8)
    verify(ok, folder, tmp_path / "out", tmp_path / "record.json", "--tp", 8)
    checks = json.loads((tmp_path / "record.json").read_text())["checks"]
    assert checks["rows_of_padding"] == 2 * 3


@pytest.mark.parametrize("tp", [0, -1])
def test_no_ranks_are_refused(tp, step, tmp_path):
    done = convert(step, DEMO, tmp_path / "out", "--tp", tp)
    assert done.returncode == 1 and "expected numbers from 1" in done.stderr
