"""What each rule's jobs ask of SLURM: sbatch's own arguments, by the plugin that writes them."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from snakemake.iocontainers import ResourceList

import slurm
from conftest import ROOT
from ingot.driver.cache.dry_run import ANSWER
from ingot.driver.toolchains import toolchains

HERE = {
    "publish",
    "all",
    "toolchain",
    "fetch_listing",
    "fetch_file",
}  # rules whose jobs are not submitted
HERE |= {"compute_imatrix", "bundle_kuberay"}  # whose text and image the demo has not
LARGE = ("artifacts/llama405b_tp8.vmfb", "artifacts/llama8b_tp2.trtllm")
SMALL = (
    "artifacts/demo.q4_k_m.gguf", "artifacts/demo.irpa.verified.json",
    "artifacts/demo.gguf.verified.json", "artifacts/demo_tp8.irpa.verified.json", "artifacts/demo_tp2.irpa",
    "artifacts/demo_tp4.irpa", "artifacts/demo_tp1.vmfb.verified.json",
    "artifacts/demo_tp1.shortfin.verified.json", "artifacts/demo_tp1.triton.verified.json",
    "artifacts/demo_tp1.fp8.trtllm-ckpt.verified.json", "artifacts/demo.quants",
    "artifacts/demo.q6_k.split.verified.json", "artifacts/demo_tp2.trtllm-ckpt.verified.json",
    "artifacts/demo.onnx.verified.json", "artifacts/demo.rtx.verified.json",
    "artifacts/demo.int8.openvino.verified.json", "artifacts/demo.torchpipe.verified.json",
    "artifacts/demo_tp1.vllm-slurm.verified.json", "artifacts/demo_tp1.rayserve.verified.json",
    "artifacts/gemma3-4b-it.mmproj.gguf.verified.json", "artifacts/demo.fp8.safetensors.verified.json",
    "artifacts/demo_tp1.fp8.vllm-slurm", "artifacts/demo.4bit.mlx.verified.json",
    "artifacts/demo.fp8_static.safetensors",
)  # fmt: skip
OTHER_WAY = (
    "artifacts/demo.q4_k_m.gguf.verified.json", "artifacts/demo.quants",
    "artifacts/demo.onnx.verified.json", "artifacts/demo.int4.openvino.verified.json",
    "--config", "models={demo: {way: upstream}}",
)  # fmt: skip
ADAPTED = (
    "artifacts/tuned.lora.gguf.verified.json", "--config",
    f"models={{tuned: {{adapter: {{base: demo, hub: org/tuned, revision: {'a' * 40}}}}}}}",
)  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A cluster whose nodes have 2 TB."""
    slurm.skip_where_missing()
    with slurm.Slurm(tmp_path_factory.mktemp("large") / "slurm", memory=2_000_000) as found:
        yield found


@pytest.fixture
def asked(large, clone, store, tmp_path):
    """asked(targets) is what a dry run, without a network, says of each job in a fresh checkout."""

    def run(*targets, submit="all", **more):
        answer = tmp_path / "jobs.json"
        done = subprocess.run(
            [ROOT / ".venv/bin/snakemake", "-n", *targets, "--profile", "slurm"],
            cwd=clone(f"c{len(list(tmp_path.iterdir()))}"), check=False, capture_output=True, text=True,
            env={**os.environ, **large.environment, "INGOT_STORE": str(store), ANSWER: str(answer),
                 "INGOT_SUBMIT": submit, "HF_ENDPOINT": "http://127.0.0.1:9", **more},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout[-1500:]
        return [job for job in json.loads(answer.read_text()) if job["action"] == "run"]

    return run


@pytest.fixture(scope="module")
def command():
    """command(asks): the plugin's sbatch for a job with these resources."""
    place = toolchains.build(ROOT, "slurm") / "lib"
    sys.path.append(str(next(place.glob("python*/site-packages"))))
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    def write(asks):
        resources = ResourceList(fromdict={"_nodes": 1, **asks})
        job = SimpleNamespace(resources=resources, threads=asks["_cores"], name="x")
        more = {"account": "", "partition": f"-p {asks['slurm_partition']}", "workdir": ""}
        params = {"run_uuid": "run", "slurm_logfile": "log", "comment_str": "x", **more}
        return get_submit_command(job, params) + set_gres_string(job)

    yield write
    sys.path.pop()


def test_every_rule_is_submitted_with_what_its_forecast_says(asked, command):
    rules = {
        name
        for path in (ROOT / "rules").glob("*.smk")
        for name in re.findall(r"^rule (\w+):", path.read_text(), re.M)
    }
    seen = set()
    for job in (*asked(*SMALL), *asked(*OTHER_WAY), *asked(*ADAPTED)):
        if "asks" not in job:
            continue
        seen.add(re.sub(r"_tp\d+$", "", job["rule"]))
        words, asks, forecast = command(job["asks"]), job["asks"], job["forecast"]
        assert f" -p {'gpu' if forecast['gpus'] else 'cpu'} " in words, words
        assert f" -t {max(10, -(-3 * forecast['seconds'] // 60)):.0f} " in words, words
        memory = int(re.search(r" --mem (\d+)", words)[1])
        assert memory == pytest.approx(1.25e-6 * forecast["memory"] + 300, abs=1), words
        assert f" --cpus-per-task={asks['_cores']}" in words
        assert ("--gpus=" in words or "--gres" in words) == bool(forecast["gpus"]) and asks[
            "_cores"
        ] >= 2
    assert {re.sub(r"_tp\d*$", "", name) for name in rules} - HERE <= seen


def test_the_sites_qos_and_type_of_gpu_are_asked_for(asked, command, tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("{qos: {cpu: low, gpu: high}, gpu_type: h100, reservation: nightly}")
    asks = {
        job["rule"]: job["asks"] for job in asked(LARGE[1], INGOT_SITE=str(path)) if "asks" in job
    }
    engine, other = command(asks["build_engine"]), command(asks["safetensors_to_trtllm"])
    assert "--qos=high" in engine and "h100:1" in engine, engine
    assert "--qos=low" in other and "h100" not in other, other


def test_no_rule_holds_a_number_of_megabytes_minutes_or_cores():
    text = "".join(path.read_text() for path in (ROOT / "rules").glob("*.smk"))
    asked = re.findall(r"^    resources:\n +(\w+=.*)", text, re.M)
    assert asked and all(one.startswith('gpu=inputs.gpus("') for one in asked), "by a function"
    assert not re.findall(r"^    (threads|retries|group|priority):", text, re.M)


def test_the_405b_model_is_asked_for_in_a_fresh_checkout_without_a_network(asked):
    jobs = {job["rule"]: job for job in asked(*LARGE, submit="")}
    asks = jobs["compile_vmfb"]["asks"]
    assert 3_000 < asks["mem_mb"] < 10_000 and asks["_cores"] == 8 and asks["runtime"] > 20
    asks = jobs["build_engine"]["asks"]
    assert asks["gpu"] == 1 and asks["slurm_partition"] == "gpu" and asks["mem_mb"] > 20_000
    assert "asks" not in jobs["fetch_file"], "downloads are done here"
