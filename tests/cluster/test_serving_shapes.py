"""What serve.sbatch asks for the guide's models: a declared cluster of H100 says whether it could be."""

import json
import subprocess
import sys

import pytest

import checkpoints
import slurm
from conftest import ROOT
from ingot.driver.toolchains import toolchains
from ingot.model.config import read_config
from ingot.serving.vllm import bundle as bundle_of
from ingot.serving.vllm import plan as plan_of

WEIGHTS = {"llama70b": 141_107_412_992, "llama405b": 811_706_777_600}  # bytes, in bfloat16


def sbatch(folder, name, tp, **settings):
    """The file that the bundle would hold; no weights are needed for it."""
    (folder / "config.json").write_text(json.dumps(checkpoints.public_config(name)))
    own = {"device": "sm90", "memory": 80, "arguments": [], **settings}
    plan = plan_of.planned(read_config(folder / "config.json"), own, tp, "bfloat16", name)
    path = folder / "serve.sbatch"
    path.write_text(bundle_of.launchers(name, plan, WEIGHTS[name])["serve.sbatch"])
    return path


def ask(environment, path, *more):
    return subprocess.run(
        ["sbatch", "--test-only", *more, path], env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    ).stderr  # fmt: skip


@pytest.fixture(scope="module", params=[(2, 8), (4, 4)], ids=["2 nodes of 8", "4 nodes of 4"])
def declared(request, tmp_path_factory):
    slurm.skip_where_missing()
    with slurm.declared(tmp_path_factory.mktemp("declared") / "c", *request.param) as found:
        yield request.param, found


def test_a_cluster_of_h100_takes_the_guides_models(declared, tmp_path):
    (nodes, gpus), environment = declared
    named = f"--gpus-per-node=h100:{gpus}"
    said = ask(environment, sbatch(tmp_path, "llama405b", gpus), named)
    assert f"on nodes n[1-{nodes}] in partition h100" in said, said
    said = ask(environment, sbatch(tmp_path, "llama70b", 4), "--gpus-per-node=h100:4")
    assert "on nodes n1 in partition h100" in said, said


def test_it_refuses_what_it_has_not(declared, tmp_path):
    (_, gpus), environment = declared
    path = sbatch(tmp_path, "llama405b", gpus, pp=8)
    assert "allocation failure" in ask(environment, path), "more nodes than there are"
    assert "allocation failure" in ask(environment, path, "--nodes=1", "--gpus-per-node=h100:16")
    path = sbatch(tmp_path, "llama70b", 4)
    assert "Requested time limit is invalid" in ask(environment, path, "--time=9-0")
    assert "invalid partition specified: a100" in ask(environment, path, "--partition=a100")


def test_the_scripts_are_shellcheck_clean(tmp_path):
    path = sbatch(tmp_path, "llama405b", 8)
    check = toolchains.build(ROOT, "ci") / "bin/shellcheck"
    plan = plan_of.planned(
        read_config(ROOT / "models/demo/config.json"),
        {"device": "cpu", "memory": 0, "arguments": []}, 1, "float32", "k",
    )  # fmt: skip
    for name, text in bundle_of.launchers("demo", plan, 1).items():
        (tmp_path / name).write_text(text)
        done = subprocess.run([check, tmp_path / name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken"
    broken.write_text(path.read_text().replace('"$folder/serve"', "$folder/serve"))
    assert subprocess.run([check, broken], capture_output=True, check=False).returncode == 1
    assert sys.executable not in path.read_text()
