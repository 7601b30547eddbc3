"""What a bundle for vLLM asks and holds: layouts of the guide's models, refusals, bytes, no secrets."""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bundles
import checkpoints
from conftest import ROOT
from ingot.base import sealed
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats import serving
from ingot.driver.catalogue.formats.rows import FORMATS
from ingot.formats.iree import bundle as shortfin_bundle
from ingot.model.config import read_config
from ingot.parity.reference import Answer
from ingot.serving.vllm import bundle as bundle_of
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.server import Server

GIB = 1 << 30
H100 = {"device": "sm90", "memory": 80, "dtype": "bfloat16", "arguments": []}


@pytest.fixture
def config(tmp_path):
    def read(name):
        (tmp_path / "config.json").write_text(json.dumps(checkpoints.public_config(name)))
        return read_config(tmp_path / "config.json")

    return read


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return bundles.reference(tmp_path_factory.mktemp("reference"))


def planned(config, tp, **settings):
    return plan_of.planned(config, {**H100, **settings}, tp, "bfloat16", "models.m.vllm")


@pytest.mark.parametrize(
    ("name", "tp", "settings", "pp", "nodes", "per_node"),
    [
        ("llama70b", 4, {}, 1, 1, 4),
        ("llama405b", 8, {}, 2, 2, 8),
        ("llama405b", 4, {}, 4, 4, 4),
        ("llama70b", 8, {"nodes": 2}, 1, 2, 4),
    ],
)
def test_the_guides_models_lie_on_as_many_nodes_as_hold_them(
    config, name, tp, settings, pp, nodes, per_node
):
    plan = planned(config(name), tp, **settings)
    assert (plan.pp, plan.nodes, plan.ranks_per_node) == (pp, nodes, per_node)
    assert plan.kv_tokens >= plan.max_model_len == 131_072


def test_405b_with_the_guides_numbers_beside_the_right_ones(config):
    plan = planned(config("llama405b"), 8)
    whole = plan.cache.bytes(128_000) * plan.tp * plan.pp / GIB
    assert round(whole, 1) == 61.5  # the guide's 123.05 is of 16 KV heads
    assert plan_of.asked(plan, 811_706_908_672, 150)["time"] == "11:15:00"


@pytest.mark.parametrize(
    ("name", "tp", "settings", "said"),
    [
        ("llama70b", 3, {}, "64 attention heads are not divisible by 3"),
        ("llama405b", 11, {}, "128 attention heads are not divisible by 11"),
        ("llama405b", 12, {}, "128 attention heads are not divisible by 12"),
        ("llama70b", 4, {"pp": 1, "memory": 40}, "the weights alone do not fit"),
        ("llama70b", 2, {"pp": 1, "memory": 94}, "the longest that fits is "),
        ("llama70b", 4, {"max_model_len": 200_000}, "200000, expected at most 131072"),
        ("llama70b", 4, {"kv_cache_bytes": 1 << 30}, "the longest that fits is 13104"),
        ("llama70b", 4, {"kv_cache_bytes": 1 << 36, "pp": 1}, "do not fit into"),
        ("llama70b", 4, {"nodes": 3}, "nodes: 3, expected a divisor of 4 ranks"),
        ("llama70b", 4, {"pp": 99}, "80 layers do not divide into 99 stages"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(config, name, tp, settings, said):
    with pytest.raises(Refused) as refused:
        planned(config(name), tp, **settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "tp", "tokens"),
    [
        ({"kv_cache_bytes": 1 << 26}, 1, 8192),
        ({"kv_cache_bytes": 1 << 26}, 2, 16384),
        ({}, 1, 131_072),
        ({"kv_cache_bytes": (1 << 26) + 5000}, 1, 8192),  # whole blocks
    ],
)
def test_the_cache_of_the_demo_in_tokens(settings, tp, tokens):
    config = read_config(ROOT / "models/demo/config.json")
    own = {"device": "cpu", "memory": 0, "arguments": [], **settings}
    assert plan_of.planned(config, own, tp, "float32", "models.demo.vllm").kv_tokens == tokens


def test_a_bundle_is_the_same_from_another_folder_and_names_nobody(reference, tmp_path):
    one = bundles.write(tmp_path / "a/one", reference)
    copied = shutil.copy(reference, tmp_path / "other.npz")
    other = bundles.write(tmp_path / "b", Path(copied))
    assert (one / sealed.SUMS).read_text() == (other / sealed.SUMS).read_text()
    secrets = {str(tmp_path), str(ROOT), socket.gethostname(), os.environ.get("HF_TOKEN") or "hf_"}
    secrets |= {str(Path.home()) + "/", getpass.getuser() + "@"}
    for path in one.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors" and path.name != "tokenizer.json":
            text = path.read_text()
            found = [word for word in secrets if re.search(rf"(?<![\w./]){re.escape(word)}", text)]
            assert not found, (path, found)
    assert not [path for path in one.rglob("*") if path.is_symlink()]
    assert sealed.sealed(one)
    subprocess.run(["sha256sum", "-c", "--quiet", sealed.SUMS], cwd=one, check=True)


def test_fetched_weights_are_linked_never_copied(reference, tmp_path):
    folder = shutil.copytree(ROOT / "models/demo", tmp_path / "demo.hf")
    files = bundle_of.contents(
        model="demo", tp=1, settings=bundles.SETTINGS, tokenizer=[folder / "tokenizer.json"],
        checkpoint=[folder / "config.json", *folder.glob("model*")], parts=[], lock=[bundles.LOCK],
        reference=[reference],
    )  # fmt: skip
    (tmp_path / "b").mkdir()
    sealed.fill(tmp_path / "b", files)
    for path in folder.glob("*.safetensors"):
        assert (tmp_path / "b/model" / path.name).stat().st_nlink == path.stat().st_nlink == 2


def test_what_it_must_answer_is_what_the_dtype_can_tell():
    sure, tied = np.full((2, 8), -3, np.float32), np.full((2, 8), -3, np.float32)
    sure[[0, 1], [1, 2]] = 5
    tied[0, 1], tied[1, 2], tied[1, 3] = 5, 5, 4.999
    answers = [Answer([4, 5], [1, 2], tied), Answer([6], [1, 2], sure)]
    cases = bundle_of.cases("demo", answers, "bfloat16", longest=3)
    assert [(case["prompt"], case["tokens"]) for case in cases] == [([6], [1, 2]), ([4, 5], [1])]
    with pytest.raises(Refused, match="tells no first token"):
        bundle_of.cases("demo", [Answer([4, 5, 6], [1], sure[:1])], "bfloat16", longest=3)


def test_a_row_refuses_an_unknown_device_and_a_record_over_nodes():
    catalogue = schema.load(ROOT, [])
    catalogue["models"]["llama70b"]["vllm"].update(pp=1, max_model_len=131_072, device="sm86")
    said = targets.why_not("artifacts/llama70b_tp4.vllm-slurm", catalogue)
    assert "the longest that fits is 83152" in said, "before 141 GB are fetched"
    entry = catalogue["models"]["demo"]
    assert targets.why_not("artifacts/demo_tp2.vllm-slurm.verified.json", catalogue) is None
    entry["vllm"]["nodes"] = 2
    assert "a server on several nodes is verified by its own job" in targets.why_not(
        "artifacts/demo_tp2.vllm-slurm.verified.json", catalogue
    )
    entry["vllm"]["device"] = "tpu"
    assert "vllm.device: tpu, expected cpu or" in targets.why_not(
        "artifacts/demo_tp2.vllm-slurm", catalogue
    )
    assert serving.ROWS[0] is FORMATS["vllm-slurm"]


def test_a_folder_of_no_server_is_refused(tmp_path):
    (tmp_path / "bundle.json").write_text('{"model": "demo"}')
    with (
        pytest.raises(Refused, match="no folder of a server"),
        Server(tmp_path, Path(sys.executable)),
    ):
        pass


def test_a_launch_script_says_which_python_it_needs(tmp_path):
    script = tmp_path / "serve"
    script.write_text(shortfin_bundle.launch_script("local-task", 2))
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["sh", str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr == (
        f"serve: {sys.executable} has no shortfin_apps; PYTHON=... names one that has requirements.lock\n"
    )
