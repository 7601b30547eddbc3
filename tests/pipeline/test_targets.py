"""What may be asked for: one line with the nearest right ones for all else."""

import shutil

import pytest

from conftest import planned, ran


def test_the_command_stops_with_one_line_before_any_work(snakemake, tmp_path):
    done = snakemake(tmp_path, "--", "artifacts/llama999b_tp3.vmfb")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith("error: artifacts/llama999b_tp3.vmfb: unknown model llama999b; nearest:")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize(
    "entry, expected",
    [
        ("{path: x, name: X, architecture: LlamaForCausalLM, pre_tokenizer: default, tpp: [1]}",
         "models.mine.tpp: no such key, expected tp"),
        ("{name: X, architecture: LlamaForCausalLM, pre_tokenizer: llama-bpe}", "models.mine:"),
        ("{path: x, name: X, architecture: a b, pre_tokenizer: default}",
         "models.mine.architecture: 'a b'"),
        ("{hub: a/b, shards: 1, revision: main, name: X, architecture: LlamaForCausalLM,"
         " pre_tokenizer: llama-bpe}", "models.mine.revision: 'main'"),
        ("{path: x, name: X, architecture: LlamaForCausalLM, pre_tokenizer: llama-bpe, hardware: tpu}",
         "models.mine.hardware: tpu, expected one of cpu, gfx942"),
    ],
)  # fmt: skip
def test_a_catalogue_that_breaks_the_schema_is_refused_naming_the_key(
    entry, expected, snakemake, tmp_path
):
    (tmp_path / "mine.yaml").write_text(f"models: {{mine: {entry}}}")
    done = snakemake(tmp_path, "-n", "--configfile", "mine.yaml", "--", "artifacts/demo.gguf")
    assert done.returncode == 1 and expected in done.stderr


CHAINS = {
    "demo.gguf": {"safetensors_to_gguf"},
    "demo.q4_k_m.gguf": {"quantize_gguf"},
    "demo.q4_k_m.gguf.verified.json": {
        "quantize_gguf", "read_config", "generate_reference", "encode_texts", "score_corpus", "verify_gguf",
    },
    "demo.quants": {"quantize_all"},
    "glm4-9b.q4_k_m.gguf": {"fetch_listing", "fetch_file", "convert_gguf", "quantize_float"},
    "qwen3-30b-a3b.q4_k_m.gguf": {"fetch_listing", "fetch_file", "quantize_gguf"},
    "gemma3-4b-it.mmproj.gguf": {"fetch_listing", "fetch_file", "convert_mmproj"},
    "gemma3-4b-it.int8.onnx": {"fetch_listing", "fetch_file", "export_onnx"},
    "glm4-9b.quants": {"fetch_listing", "fetch_file", "convert_gguf", "quantize_floats"},
    "glm4-9b.q8_0.gguf.verified.json": {
        "fetch_listing", "fetch_file", "read_config", "convert_gguf", "generate_reference", "encode_texts",
        "score_corpus", "verify_converted",
    },
    "demo.q4_k_m.split": {"quantize_gguf", "split_gguf"},
    "demo.bf16.irpa": {"safetensors_to_gguf", "gguf_to_irpa"},
    "demo_tp1.vmfb": {"export_mlir", "compile_vmfb"},
    "demo_tp1.gfx942.vmfb": {"export_mlir", "compile_vmfb"},
    "llama405b_tp1.vmfb": {"fetch_listing", "fetch_file", "export_mlir", "compile_vmfb"},
    "llama2-7b-chat.gguf": {"fetch_listing", "fetch_file", "safetensors_to_gguf"},
    "demo_tp4.irpa": {"shard_irpa_tp4"},
    "demo_tp2.irpa.verified.json": {
        "read_config", "digest_weights", "shard_irpa_tp2", "verify_shards_tp2",
    },
    "demo_tp2.trtllm-ckpt": {"safetensors_to_trtllm"},
    "demo_tp2.fp8.trtllm": {"quantize_trtllm", "build_engine"},
    "demo_tp2.sm80.triton": {"safetensors_to_trtllm", "build_engine", "assemble_triton"},
    "demo.rtx": {"export_onnx", "build_rtx"},
    "demo.int8.openvino": {"export_openvino"},
    "demo.int4.openvino": {"build_openvino"},
    "demo.torchpipe.verified.json": {"split_onnx", "read_config", "generate_reference", "verify_torchpipe"},
    "demo.rtx.verified.json": {
        "export_onnx", "read_config", "generate_reference", "encode_texts", "score_corpus", "verify_onnx",
        "build_rtx", "verify_rtx",
    },
    "demo_tp1.shortfin": {
        "safetensors_to_gguf", "gguf_to_irpa", "export_mlir", "compile_vmfb", "bundle_shortfin",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_the_rules_that_each_target_needs(name, snakemake, tmp_path):
    done = snakemake(tmp_path, "-n", "--", f"artifacts/{name}")
    assert done.returncode == 0, done.stderr
    found = {rule for rule, _ in planned(done.stdout + done.stderr).values()}
    assert found - {"toolchain"} == CHAINS[name]


def test_a_program_needs_config_json_and_no_weight(snakemake, tmp_path):
    done = snakemake(tmp_path, "-n", "--", "artifacts/llama405b_tp8.vmfb")
    assert "artifacts/llama405b.hf/config.json" in done.stdout + done.stderr
    assert ".safetensors" not in done.stdout + done.stderr


def test_a_moved_working_folder_reruns_nothing(snakemake, tmp_path):
    words = ("--quiet", "rules", "--", "artifacts/demo.gguf")
    (tmp_path / "a").mkdir()
    first = snakemake(tmp_path / "a", *words)
    assert first.returncode == 0, first.stderr
    (tmp_path / "a").rename(tmp_path / "b")
    again = snakemake(tmp_path / "b", "-n", "--", "artifacts/demo.gguf")
    assert "Nothing to be done" in again.stdout + again.stderr


MODULE = """
configfile: "{root}/models.yaml"
module ingot:
    snakefile: "{root}/Snakefile"
    config: config
use rule * from ingot as x_*
rule mine:
    input: irpa="artifacts/demo.irpa", code="plot.py"
    output: "mine.sum"
    shell: "sha256sum {{input.irpa}} >{{output}}"
"""
INCLUDED = """
configfile: "{root}/models.yaml"
include: "{root}/Snakefile"
rule mine:
    input: irpa="artifacts/demo.irpa", code="plot.py"
    output: "mine.sum"
    shell: "sha256sum {{input.irpa}} >{{output}}"
"""


@pytest.mark.parametrize("text", [MODULE, INCLUDED], ids=["module", "include"])
def test_the_pipeline_is_a_part_of_somebodys_own(text, clone, build, tmp_path):
    house = clone("house")
    build(house, "--", "artifacts/demo.irpa")
    own = tmp_path / "own"
    own.mkdir()
    (own / "Snakefile").write_text(text.format(root=house))
    (own / "plot.py").write_text("print(__file__)")  # in a step of ours it is refused
    said = build(own, "--", "mine.sum")
    assert "restore  artifacts/demo.irpa" in said and ran(said) == {"mine"}
    assert (own / "mine.sum").read_text().endswith("artifacts/demo.irpa\n")
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(own / "artifacts")
    (own / "mine.sum").unlink()
    build(own, "--", "mine.sum")  # builds there, too
    assert "restore" in build(clone("third"), "--", "artifacts/demo.irpa")
