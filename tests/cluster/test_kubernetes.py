"""The Kubernetes profile, by Snakemake's own plugin and a stand-in for the API server."""

import json
import os
import subprocess

import pytest

import checkpoints
from conftest import ROOT, ran
from kubernetes_api import Api

GGUF = "artifacts/demo.gguf"


@pytest.fixture
def submit(clone, store, tmp_path):
    """submit(target) runs the documented command in a clone: what it said, and the jobs it posted."""

    def run(*targets, fails=False):
        with Api(tmp_path / "api") as api:
            command = [ROOT / ".venv/bin/snakemake", *targets, "--profile", "profiles/kubernetes"]
            done = subprocess.run(
                command, cwd=clone("a"), capture_output=True, text=True, timeout=240, check=False,
                env={**os.environ, **api.environment, "INGOT_STORE": str(store), "INGOT_SUBMIT": "all"},
            )  # fmt: skip
            assert (done.returncode != 0) == fails, done.stdout + done.stderr
            return done.stdout + done.stderr, list(api.jobs.values())

    return run


def test_each_job_is_a_pod_that_asks_what_its_forecast_says(submit, tmp_path):
    said, (job,) = submit(GGUF)
    assert "safetensors_to_gguf" in ran(said) and (tmp_path / "a" / GGUF).exists()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    asked = container["resources"]["requests"]
    assert asked["cpu"] == "1900m" and 300 < int(asked["memory"].removesuffix("M")) < 1000
    assert asked["ephemeral-storage"] == "1000M", "outputs lie on the volume"
    assert {"name": "ingot", "mountPath": "/ingot"} in container["volumeMounts"]
    assert pod["volumes"][1]["persistentVolumeClaim"]["claimName"] == "ingot"
    assert container["image"].startswith("python:3.11") and job["spec"]["backoffLimit"] == 0


def test_a_step_that_fails_in_its_pod_is_said(submit, tmp_path, monkeypatch):
    config = json.loads((ROOT / "models/demo/config.json").read_text())
    said, jobs = submit("artifacts/bad.gguf", "--configfile", bad(tmp_path, config), fails=True)
    assert len(jobs) == 1 and checkpoints.OTHER_SIZE in said


def bad(tmp_path, config):
    """A catalogue with a model that no step takes."""
    folder = tmp_path / "bad"
    folder.mkdir()
    for path in (ROOT / "models/demo").iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 288}))
    entry = {
        "path": str(folder), "name": "Bad", "architecture": "LlamaForCausalLM",
        "pre_tokenizer": "llama-bpe", "license": "apache-2.0", "tp": [1], "hardware": "cpu",
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"bad": entry}}))
    return str(tmp_path / "mine.yaml")
