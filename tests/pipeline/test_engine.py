"""Engines: flags of two versions, refusals before any work, what trtllm-build is told.

trtllm-build and nvidia-smi are stand-ins (tests/doubles/README.md); all else is real.
"""

import json
import os
import shutil
import subprocess

import pytest

import place
from conftest import ROOT
from flag_table import TABLE, parsed

TARGET = "artifacts/demo_tp2.trtllm"


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """What a machine with a GPU and the toolchain has on its PATH."""
    return place.toolchain(tmp_path_factory.mktemp("trtllm") / "toolchain")


ASKABLE = [
    row
    for row in TABLE
    if row[2] in ("accepted", "refused") and not row[0].startswith(("checkpoint", "output_dir"))
]


@pytest.mark.parametrize("row", ASKABLE, ids=[row[0] for row in ASKABLE])
def test_the_stand_in_accepts_and_refuses_what_the_table_says(row, gpu):
    setting, _, new, _ = row
    ((name, value),) = parsed(setting).items()
    done = subprocess.run(
        [gpu / "trtllm-build", f"--{name}={value}", "--checkpoint_dir=/nowhere"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ("unrecognized arguments" in done.stderr) == (new == "refused")


# With and without a GPU


def catalogue(tmp_path, **trtllm):
    entry = {
        "path": str(ROOT / "models/demo"), "name": "Mine", "architecture": "LlamaForCausalLM",
        "pre_tokenizer": "llama-bpe", "hardware": "cpu", "trtllm": trtllm,
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"mine": entry}}))
    return ("--configfile", "mine.yaml", "--", "artifacts/mine_tp2.trtllm")


@pytest.fixture
def on(snakemake, tmp_path):
    """on(path, *words) builds with `path` before the PATH; what it said, or a failed test."""

    def run(path, *words, fails=False, **environment):
        whole = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
        done = snakemake(tmp_path, *words, environment={"PATH": whole, **environment})
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        assert "Traceback" not in said
        return said

    return run


def only(said):
    """The one line that says what is wrong."""
    (line,) = (line for line in said.splitlines() if line.startswith("error: "))
    return line


def test_without_a_gpu_an_engine_stops_in_one_line_before_any_work(on, tmp_path):
    said = on(None, TARGET, fails=True)
    assert only(said) == (
        f"error: {TARGET}: building an engine needs an NVIDIA GPU and this machine has none; run it on "
        "one with a GPU"
    )
    assert not (tmp_path / "artifacts").exists() and not (tmp_path / "logs").exists()
    assert "Job stats" not in said


def test_without_a_gpu_the_plan_can_still_be_seen(on):
    assert "build_engine" in on(None, "-n", TARGET)


@pytest.mark.slow
def test_trtllm_build_is_given_the_whole_command_and_a_right_checkpoint(gpu, on, tmp_path):
    heard = tmp_path / "argv.json"
    on(gpu, TARGET, INGOT_STANDIN_ARGV=str(heard))
    argv = json.loads(heard.read_text())["argv"]
    assert argv[0::2][0] == "--checkpoint_dir" and argv[1].endswith("demo_tp2.trtllm-ckpt")
    assert argv[2] == "--output_dir"
    assert argv[4:] == [
        "--workers", "1", "--context_fmha=enable", "--gemm_plugin=auto",
        "--gpt_attention_plugin=auto", "--kv_cache_type=paged", "--max_batch_size=8",
        "--max_input_len=448", "--max_num_tokens=8192", "--max_seq_len=512",
        "--remove_input_padding=enable", "--use_paged_context_fmha=enable",
    ]  # fmt: skip
    names = {path.name for path in (tmp_path / TARGET).iterdir()}
    assert names >= {"rank0.engine", "rank1.engine", "config.json", "SHA256SUMS"}
    assert not list(tmp_path.rglob("model.cache"))  # a timing cache left where it was built
    shutil.rmtree(tmp_path / "artifacts")
    said = on(None, TARGET, INGOT_TRTLLM=str(gpu / "trtllm-build"))  # but no GPU
    assert f"restore  {TARGET}" in said, "an engine on record needs none"


@pytest.mark.slow
def test_the_key_holds_versions_gpu_and_flags_and_not_their_order(gpu, on, tmp_path):
    flags = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 512}
    words = catalogue(tmp_path, build=flags)
    assert "build_engine" in on(gpu, *words)
    catalogue(tmp_path, build=dict(reversed(flags.items())))
    assert "build_engine" not in on(gpu, *words), "the same flags in another order"
    catalogue(tmp_path, build={**flags, "max_input_len": 256})
    assert "build_engine" in on(gpu, *words)
    older = {"max_output_len": 256, "max_input_len": 256, "multi_block_mode": "enable"}
    catalogue(tmp_path, build={"max_batch_size": 4, "paged_kv_cache": True, **older})
    said = on(gpu, *words)
    assert "build_engine" not in said, "the same flags in the older spelling"
    assert "max_output_len: 256 -> max_seq_len: 512" in said
    catalogue(tmp_path, build={**flags, "max_batch_size": 5})
    assert "max_batch_size" in on(gpu, "-n", *words)
    other = place.toolchain(
        tmp_path / "other", {"tensorrt_llm": "1.2.1+other", "tensorrt": "10.14.1.48"}
    )
    catalogue(tmp_path, build=flags)
    said = on(other, "-n", *words)
    assert "versions" in said and "build_engine" in said


REFUSED = {
    "another GPU": ({"gpu": "sm80"}, {}, "built for compute capability 8.0, but NVIDIA Stand-in"),
    "another version": (
        {},
        {"tensorrt_llm": "1.3.0", "tensorrt": "10.14.1.48"},
        "are 1.3.0 10.14.1.48, expected 1.2.1 and 10.14.1.48",
    ),
    "another TensorRT": (
        {},
        {"tensorrt_llm": "1.2.1", "tensorrt": "10.15.0"},
        "are 1.2.1 10.15.0, expected 1.2.1 and 10.14.1.48",
    ),
    "a flag": ({"build": {"use_custom_all_reduce": True}}, {}, "the runtime chooses the all-reduce"),
    "another size": ({"build": {"tp_size": 4}}, {}, "tp_size: since 0.12 the target's name sets the size"),
}  # fmt: skip


@pytest.mark.slow
def test_rolling_disk_drops_folders_too(gpu, on, tmp_path):
    target = "artifacts/demo_tp2.triton"
    on(gpu, "--config", "keep=targets", "--", target)
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["demo_tp2.triton"]
    blobs = sum(path.stat().st_size for path in (tmp_path / ".store/blobs").rglob("*"))
    engine = sum(p.stat().st_size for p in (tmp_path / target).rglob("*.engine"))
    assert engine < blobs < 1.2 * engine, "the checkpoint's bytes are gone, the engine's are not"
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / target)
    assert done.returncode == 0


@pytest.mark.slow
def test_of_two_gpus_the_one_of_the_right_kind_is_given_to_trtllm_build(on, tmp_path):
    two = "GPU-0aaa, NVIDIA A100, 8.0, 81920\nGPU-1bbb, NVIDIA H100, 9.0, 81559"
    path = place.toolchain(tmp_path / "toolchain", gpus=two)
    heard = tmp_path / "argv.json"
    on(path, TARGET, INGOT_STANDIN_ARGV=str(heard))
    assert json.loads(heard.read_text())["visible"] == "GPU-1bbb"
    shutil.rmtree(tmp_path / "artifacts")
    shutil.rmtree(tmp_path / ".store")
    said = on(path, TARGET, fails=True, CUDA_VISIBLE_DEVICES="0")
    assert "built for compute capability 9.0, but NVIDIA A100 has 8.0" in only(said)


PIP = [
    "#!/usr/bin/env {python}",
    "#!/bin/sh\n" + 3 * "'" + "exec' {python} x",
]  # its second way is for long paths


@pytest.mark.parametrize("first", PIP)
def test_the_version_is_read_whatever_way_pip_installed_the_program(first, on, tmp_path):
    path = place.toolchain(tmp_path / "toolchain", {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0"})
    tool = path / "trtllm-build"
    tool.write_text(first.format(python=path / "python") + "\n")
    tool.chmod(0o755)
    assert "are 1.0.0 10.11.0, expected 1.2.1" in only(on(path, TARGET, fails=True))


def test_a_trtllm_build_of_unknown_version_is_not_taken_for_the_pinned_one(on, tmp_path):
    path = place.toolchain(tmp_path / "toolchain")
    (path / "trtllm-build").write_text("#!/bin/sh\nexit 0\n")
    assert "does not say its version" in only(on(path, TARGET, fails=True))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_here_is_refused_before_any_work(case, on, tmp_path):
    trtllm, versions, reason = REFUSED[case]
    path = place.toolchain(tmp_path / "toolchain", versions or place.VERSIONS)
    said = on(path, *catalogue(tmp_path, **trtllm), fails=True)
    assert reason in only(said)
    assert not (tmp_path / "artifacts").exists()


def test_an_absent_trtllm_build_is_one_line(on, tmp_path):
    path = place.toolchain(tmp_path / "toolchain")
    (path / "trtllm-build").unlink()
    said = only(on(path, TARGET, fails=True))
    assert "trtllm-build 1.2.1 is not on the PATH" in said and "INGOT_TRTLLM" in said


@pytest.mark.slow
def test_more_tokens_than_the_model_was_trained_for_are_refused(gpu, on, tmp_path):
    words = catalogue(tmp_path, build={"max_seq_len": 1024, "max_input_len": 64})
    said = on(gpu, *words, fails=True)
    assert "max_seq_len is 1024, but the model was trained for 512 tokens" in said
    assert not (tmp_path / "artifacts/mine_tp2.trtllm").exists()
    assert (tmp_path / "artifacts/mine_tp2.trtllm-ckpt").exists(), "nothing finished is lost"


@pytest.mark.slow
def test_a_trtllm_build_that_fails_is_quoted_and_leaves_nothing(gpu, on, tmp_path):
    path = shutil.copytree(gpu.parent, tmp_path / "toolchain", symlinks=True) / "bin"
    (path / "trtllm-build").write_text(
        f"#!{path}/python\nprint('[TRT] Error Code 2: out of memory')\nraise SystemExit(3)\n"
    )
    said = on(path, TARGET, fails=True)
    assert f"{TARGET}: trtllm-build ended with 3: [TRT] Error Code 2: out of memory" in said
    assert not (tmp_path / TARGET).exists()


# TensorRT for RTX, which needs no GPU


@pytest.mark.slow
def test_an_rtx_engine_comes_of_a_graph_that_gives_the_references_tokens(shared, tmp_path):
    names = ("demo.rtx", "demo.rtx.verified.json")  # by name: a record that is there comes alone
    done = shared(tmp_path, "--", *(f"artifacts/{name}" for name in names))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "artifacts/demo.rtx.verified.json").read_text())
    assert record["checks"]["greedy_equal"] == record["checks"]["prompts"] == 26
    assert record["checks"]["built_again_equal"] is True
    names = {path.name for path in (tmp_path / "artifacts/demo.rtx").iterdir()}
    assert names >= {"model.engine", "config.json", "LICENSE", "SHA256SUMS"}
    assert "proprietary" in (tmp_path / "artifacts/demo.rtx/LICENSE").read_text()
