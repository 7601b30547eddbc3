"""Quantised checkpoints beside those of llm-compressor and mlx-lm, byte for byte; what is refused."""

import json
import shutil
import struct

import pytest

import checkpoints
from conftest import ROOT, once
from ingot.base.refused import Refused
from ingot.model.checkpoint.quantised import folder
from ingot.parity import checkpoint_folder

SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
PRESETS = {
    "fp8": "FP8_DYNAMIC", "fp8_block": "FP8_BLOCK", "w8a8": "W8A8", "w4a16": "W4A16",
    "mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16",
}  # fmt: skip
SHAPES = {  # 128 divides all rows
    "demo": None,
    "Llama in float16": ("Llama 3.2", "F16"),
    "Llama in float32": ("both biases", "F32"),
    "Qwen3": ("Qwen3", "BF16"),
    "Qwen3-MoE": ("Qwen3-MoE", "BF16"),
    "Mixtral": ("Mixtral", "BF16"),
}
WIDE = {"hidden_size": 128, "intermediate_size": 256}
BITS = (0, 4, 8)
FOR_MLX = ("demo", "Qwen2", "Qwen3, tied", "Qwen3-MoE", "Mixtral", "SmolLM3", "Granite", "OLMo 2",
           "Seed-OSS")  # fmt: skip


def tensors(folder):
    """name -> dtype, shape, bytes, by the format's specification alone."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        for name, said in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = (start + at for at in said["data_offsets"])
                found[name] = (said["dtype"], said["shape"], data[begin:end])
    return found


def made(folder, name, dtype="BF16"):
    """A checkpoint of a name of families.SHAPES, with rows that 128 divides."""
    if name == "demo":
        return checkpoints.DEMO
    more = {"moe_intermediate_size": 128} if name == "Qwen3-MoE" else {}
    more |= {"tie_word_embeddings": "tied" in name or name == "SmolLM3"}
    # with -0, and values at the edges of what the dtypes can hold
    return checkpoints.variant(folder, name, dtype=dtype, **WIDE, **more)


@pytest.fixture(scope="module")
def theirs(forked, tmp_path_factory):
    """theirs("llmcompressor") is a folder: NAME is a checkpoint, NAME.out what the tool made of it."""

    def make(tool, cases, asked):
        with once(tmp_path_factory, tool) as (place, done):
            if not done:
                jobs = []
                for name, (shape, dtype) in cases.items():
                    source = made(place / name, shape, dtype)
                    jobs.append([str(source), str(place / f"{name}.out"), [*asked]])
                script = ROOT / "tests/doubles/oracle_quantised.py"
                said = forked(tool, script, tool, given=json.dumps(jobs), seconds=600)
                assert said.returncode == 0, said.stderr[-2000:]
                (place / "stderr").write_text(said.stderr)
        return place

    return make


def small(checkpoint):
    return [checkpoint / name for name in SMALL if (checkpoint / name).exists()]


def source_of(place, name):
    return checkpoints.DEMO if name == "demo" else place / name


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_those_of_llm_compressor_on_a_cpu(name, theirs, ok, tmp_path):
    cases = {one: said or ("demo", "BF16") for one, said in SHAPES.items()}
    place = theirs("llmcompressor", cases, PRESETS.values())
    source = source_of(place, name)
    for scheme, preset in PRESETS.items():
        ok(
            "convert", "quantize_safetensors.py", "--checkpoint", source, "--tokenizer",
            *small(source), "--scheme", scheme, "--quotient=stored", "--safetensors",
            tmp_path / scheme,
        )  # fmt: skip
        mine, other = tensors(tmp_path / scheme), tensors(place / f"{name}.out" / preset)
        assert mine.keys() == other.keys(), scheme
        differ = {key for key in mine if mine[key] != other[key]}
        if (name, scheme) == ("Qwen3-MoE", "nvfp4"):
            # it gives gate and up of an expert a scale of their own each, which servers join
            differ = {key for key in differ if ".experts." not in key}
        assert not differ, (scheme, sorted(differ)[:3])


@pytest.mark.slow
@pytest.mark.parametrize("name", FOR_MLX)
def test_tensors_are_those_of_mlx_lm(name, theirs, ok, tmp_path):
    place = theirs("mlx", {one: (one, "BF16") for one in FOR_MLX}, BITS)
    source = source_of(place, name)
    for bits in BITS:
        ok(
            "convert", "quantize_mlx.py", "--checkpoint", source, "--tokenizer", *small(source),
            f"--bits={bits}", "--mlx", tmp_path / str(bits),
        )  # fmt: skip
        other = place / f"{name}.out" / str(bits)
        assert tensors(tmp_path / str(bits)) == tensors(other), bits
        mine, its = (
            json.loads((one / "config.json").read_bytes()) for one in (tmp_path / str(bits), other)
        )
        assert mine == its


def test_mlx_reads_the_base_of_rope_that_transformers_5_writes(ok, tmp_path):
    """mlx-lm's classes know rope_theta alone: of such a config.json they take a default, without a word."""
    source = tmp_path / "m"
    shutil.copytree(checkpoints.DEMO, source)
    config = json.loads((source / "config.json").read_bytes())
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    config["rope_parameters"] = {"rope_theta": theta, **scaling}
    checkpoints.write_json(source / "config.json", config)
    ok(
        "convert", "quantize_mlx.py", "--checkpoint", source, "--tokenizer", *small(source),
        "--mlx", tmp_path / "out",
    )  # fmt: skip
    said = json.loads((tmp_path / "out/config.json").read_bytes())
    assert (said["rope_theta"], said["rope_scaling"]) == (theta, scaling)


@pytest.mark.parametrize(
    "scheme, size, said",
    [
        ("w4a16", 96, "has rows of 96, expected a multiple of 128"),
        ("mxfp4", 80, "take fp8 or w8a8"),
    ],
)
def test_groups_that_do_not_divide_rows_are_refused(scheme, size, said, step, tmp_path):
    source = checkpoints.variant(tmp_path / "m", "Qwen3", hidden_size=size, head_dim=16)
    done = step(
        "convert", "quantize_safetensors.py", "--checkpoint", source, "--tokenizer", *small(source),
        "--scheme", scheme, "--safetensors", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_a_scheme_is_written_the_same_however_rows_are_dealt_to_threads(ok, tmp_path):
    for turn in range(2):
        ok(
            "convert", "quantize_safetensors.py", "--checkpoint", checkpoints.DEMO, "--tokenizer",
            *small(checkpoints.DEMO), "--scheme=fp8_block", "--safetensors", tmp_path / str(turn),
        )  # fmt: skip
    assert tensors(tmp_path / "0") == tensors(tmp_path / "1")


def test_a_folder_with_a_file_too_many_or_another_is_refused(ok, tmp_path):
    place = tmp_path / "m.fp8.safetensors"
    files = small(checkpoints.DEMO)
    ok(
        "convert", "quantize_safetensors.py", "--checkpoint", checkpoints.DEMO, "--tokenizer", *files,
        "--scheme=fp8", "--safetensors", place,
    )  # fmt: skip
    said = json.loads((place / folder.INDEX).read_bytes())["weight_map"]
    checkpoint_folder.hold_files(place, files, said)
    (place / "tokenizer.json").write_text("{}")
    with pytest.raises(Refused, match="its bytes differ"):
        checkpoint_folder.hold_files(place, files, said)
    shutil.copy(checkpoints.DEMO / "tokenizer.json", place)
    with pytest.raises(Refused, match="weight_map is not where the tensors are"):
        checkpoint_folder.hold_files(
            place, files, said | {"more": "model-00001-of-00002.safetensors"}
        )
    (place / "pytorch_model.bin").write_text("")
    with pytest.raises(Refused, match="no other"):
        checkpoint_folder.hold_files(place, files, said)
