"""`ingot cast`: from a name to what serves it, or to one line that helps."""

import functools
import json
import os
import pty
import re
import shutil
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

import adapters
import checkpoints
from conftest import ROOT
from fake_hub import Hub
from ingot.driver.commands import cast
from ingot.driver.commands.fit_forms import Form

LOCAL = "models.local.yaml"


@pytest.fixture
def hub(tmp_path):
    checkpoints.llama31(tmp_path / "hub/org/small")
    said = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    fp8 = checkpoints.llama31(tmp_path / "hub/org/small-fp8", quantization_config=said)
    (fp8 / "README.md").write_text("---\nbase_model: org/small\n---\n")
    with Hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def casting(hub, ingot, tmp_path):
    (tmp_path / "w").mkdir()

    def run(*words, **more):
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", **more}
        return ingot("cast", *words, cwd=tmp_path / "w", environment=environment)

    return run


@pytest.mark.slow
def test_a_model_of_the_hub_is_added_once_and_a_form_proposed(casting, tmp_path):
    done = casting("org/small", "--on", "rtx4090", "--dry-run")
    assert done.returncode == 0, done.stderr
    (chosen,) = re.findall(r"^proposed: (artifacts/small\.\S+), .* of disk, ", done.stdout, re.M)
    assert re.search(rf"^{re.escape(chosen)} +\S+ ", done.stdout, re.M), "it is in the table"
    assert "next:" not in done.stdout, "what comes next is the proposal"
    before = (tmp_path / "w" / LOCAL).read_text()
    for again in ("small", "https://huggingface.co/org/small"):
        done = casting(again, "--on", "m4-16gb", "--to", "mlx", "--dry-run")
        assert "proposed: artifacts/small.8bit.mlx" in done.stdout, done.stderr
    assert (tmp_path / "w" / LOCAL).read_text() == before
    assert not (tmp_path / "w/artifacts/small.gguf").exists()


@pytest.mark.slow
def test_an_adapter_is_added_with_its_base_and_known_again(casting, hub, tmp_path):
    said = {"base_model_name_or_path": "org/small", "layers_to_transform": [0]}
    module = {"target_modules": ["q_proj"], **said}
    for place in (hub.root / "org/tuned", tmp_path / "w/mine"):
        adapters.saved(place, adapters.pair(hub.root / "org/small"), **module)
    for name, word in (("tuned", "org/tuned"), ("mine", "./mine")):
        for _ in range(2):
            done = casting(word, "--on", "cpu-8gb", "--dry-run")
            assert f"proposed: artifacts/{name}.q6_k.gguf" in done.stdout, done.stderr
    models = yaml.safe_load((tmp_path / "w" / LOCAL).read_text())["models"]
    assert sorted(models) == ["mine", "small", "tuned"]


@pytest.mark.slow
def test_weights_that_are_quantised_already_are_served_as_they_are(casting):
    done = casting("org/small-fp8", "--on", "h100", "--yes")
    assert done.returncode == 0, done.stderr
    assert "the checkpoint as it is: nothing is built" in done.stdout
    assert "so upstream tools write its files" not in done.stderr, "nothing is written"
    cannot = [line for line in done.stdout.splitlines() if "quantised already" in line]
    assert len(cannot) == 1 and "gguf, " in cannot[0], cannot
    assert "serve it: vllm serve org/small-fp8 --revision " in done.stdout
    done = casting("small-fp8", "--on", "h100", "--each")
    said = "--each: org/small-fp8 is served as it is, nothing is built"
    assert done.returncode == 1 and said in done.stderr, done.stderr


@pytest.mark.slow
def test_a_name_that_nobody_has_and_a_gated_one_are_one_line(casting, hub, tmp_path):
    for name, gated, said in (
        ("org/smal", None, "no such model, or a private one"),
        ("org/small", 401, "accept the license"),
        ("smal", None, "smal: no such folder, and not a model of the hub"),
    ):
        hub.faults["gated"] = gated
        done = casting(name, "--dry-run")
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and said in last and "Traceback" not in done.stderr, done.stderr
        assert not (tmp_path / "w" / LOCAL).exists()
    done = casting("demo", "--on", "rtx9999", "--dry-run")
    assert done.returncode == 1 and "rtx9999: unknown device" in done.stderr


@pytest.mark.slow
def test_a_folder_is_built_verified_and_ends_with_the_command_that_serves_it(
    casting, shared, tmp_path
):
    cast_here = functools.partial(casting, INGOT_STORE=str(shared.store))
    place = tmp_path / "w"
    shutil.copytree(ROOT / "models/demo", place / "mine")
    assert cast_here("./mine", "--on", "cpu-8gb", "--dry-run").returncode == 0
    found = yaml.safe_load((place / LOCAL).read_text())
    found["models"]["mine"]["corpus_tokens"] = 1024
    (place / LOCAL).write_text(yaml.safe_dump(found))
    done = cast_here("./mine", "--on", "cpu-8gb", "--to", "gguf", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    chosen = answer["proposed"]
    assert answer["built"] and chosen["target"] == "artifacts/mine.q6_k.gguf"
    record = json.loads((place / f"{chosen['target']}.verified.json").read_text())
    assert chosen["measured"] and chosen["kl"] == record["checks"]["numbers"]["mean_kl"]
    assert chosen["serve"] == "llama-server -m artifacts/mine.q6_k.gguf -c 512 -np 1"
    assert chosen["weights"] == (place / chosen["target"]).stat().st_size
    server = tmp_path / "bin/llama-server"
    server.parent.mkdir()
    server.write_text('#!/bin/sh\necho serving "$@"\n')
    server.chmod(0o755)
    path = f"{server.parent}:/usr/bin:/bin"
    end = chosen["target"].split(".")[1]  # of its name
    done = cast_here("mine", "--on", "cpu-8gb", "--form", end, "--serve", PATH=path)
    assert "on record already" in done.stdout and "verified; mean KL 0.00" in done.stdout
    assert done.stdout.endswith(f"serving -m {chosen['target']} -c 512 -np 1\n")


@pytest.mark.slow
def test_each_form_that_fits_is_built_and_compared(casting, shared, tmp_path):
    cast_here = functools.partial(casting, INGOT_STORE=str(shared.store))
    place = tmp_path / "w"
    shutil.copytree(ROOT / "models/demo", place / "mine")
    own = {"quants": ["q4_k_m", "q2_k"], "corpus_tokens": 1024}
    assert cast_here("./mine", "--on", "cpu-8gb", "--dry-run").returncode == 0
    found = yaml.safe_load((place / LOCAL).read_text())
    found["models"]["mine"] |= own
    (place / LOCAL).write_text(yaml.safe_dump(found))
    words = ("./mine", "--on", "cpu-8gb", "--to", "gguf", "--each", "--yes")
    done = cast_here(*words)
    assert done.returncode == 0, done.stderr
    before, table = done.stdout.split("proposed: 4 forms, in about ")
    rows = re.findall(r"^artifacts/(\S+) .* (\S+)$", table, re.M)
    expected = ["mine.gguf", "mine.q8_0.gguf", "mine.q4_k_m.gguf", "mine.q2_k.gguf"]
    assert [name for name, _ in rows] == expected, "the nearest to the model first"
    assert "~" in before and not any("~" in kl for _, kl in rows), "each is measured"
    assert all((place / f"artifacts/{name}.verified.json").exists() for name, _ in rows)
    ran = Counter(path.parent.name for path in (place / "logs").glob("quantize_*/*.log"))
    assert ran == {"quantize_all": 1}, "libllama's types come of one read"
    assert not (place / "artifacts/mine.quants").exists()
    assert done.stdout.endswith("compare them: ingot report mine\n")
    done = cast_here(*words, "--serve")
    assert done.returncode == 1 and "--each: not with --serve" in done.stderr
    found["models"]["mine"]["limits"] = {"q4_k_m": {"mean_kl": 1e-9}}
    (place / LOCAL).write_text(yaml.safe_dump(found))
    done = cast_here(*words)
    assert done.returncode == 1 and "compare them: ingot report mine" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: artifacts/mine.q4_k_m.gguf: not built or not verified"), last


@pytest.mark.slow
def test_what_no_server_here_serves_is_said_before_anything_is_built(casting):
    done = casting("demo", "--on", "cpu-8gb", "--serve", PATH="/usr/bin:/bin")
    assert done.returncode == 1 and "proposed:" not in done.stdout
    assert "--serve: no server of what fits is installed here" in done.stderr
    assert "llama-server: a release of github.com/ggml-org/llama.cpp" in done.stderr
    assert "vllm: `pip install vllm`" in done.stderr
    done = casting("demo", "--on", "cpu-8gb", "--serve", "--to", "gguf", PATH="/usr/bin:/bin")
    assert "llama-server: " in done.stderr and "vllm" not in done.stderr, done.stderr
    done = casting("demo", "--on", "cpu-8gb", "--form", "int8.onnx", "--dry-run")
    assert "proposed: artifacts/demo.int8.onnx, in about" in done.stdout, done.stderr
    done = casting("demo", "--on", "cpu-8gb", "--form", "demo.int8.onnx", "--serve")
    assert done.stderr.endswith(
        "--serve: no command serves artifacts/demo.int8.onnx; leave --serve out\n"
    )
    done = casting("demo", "--on", "cpu-8gb", "--form", "q9_k", "--dry-run")
    assert "error: artifacts/demo.q9_k: not a target, " in done.stderr, done.stderr
    done = casting("demo", "--on", "cpu-8gb", "--serve", "--json")
    assert done.returncode == 1 and "--serve: not with --json" in done.stderr


def form(target, kl, speed=0.0, weights=1.0, fits=True):
    return Form(target, "x", weights, 1, 2 if fits else 0, 0, speed, kl)


def test_a_format_that_is_not_served_on_a_device_is_said_with_those_that_are(casting):
    done = casting("demo", "--on", "cpu-8gb", "--to", "shortfin", "--dry-run")
    said = "demo: no shortfin is served on cpu-8gb, expected gguf, safetensors; or ask Snakemake for it"
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_the_fastest_that_loses_next_to_nothing_is_proposed():
    whole, near, far = (
        form("artifacts/m.gguf", 0, 10), form("artifacts/m.q6_k.gguf", 0.001, 30),
        form("artifacts/m.q2_k.gguf", 1, 90),
    )  # fmt: skip
    assert cast.proposed([whole, near, far], None) is near
    assert cast.proposed([far], None) is far, "the nearest that fits"
    assert cast.proposed([whole, form("artifacts/m.mlx", 0, 5)], "mlx").target == "artifacts/m.mlx"
    assert cast.proposed([form("artifacts/m.gguf", 0, fits=False)], None) is None
    unserved = replace(form("artifacts/m.int8.onnx", 0, 9), serve="# in a program of yours")
    assert cast.proposed([unserved], None) is None and cast.proposed([unserved], "onnx") is unserved
    assert cast.proposed([unserved], None, asked=True) is unserved
    little = form("artifacts/m.q8_0.gguf", 0, weights=0.5)
    assert cast.proposed([form("artifacts/m.gguf", 0), little], None) is little, "no bandwidth"
    asis = form("org/m", 0, 50)
    assert cast.proposed([asis, whole], None) is whole and cast.proposed([asis], None) is asis


@pytest.mark.parametrize("said, taken", [("\n", True), ("y\n", True), ("n\n", False), ("", True)])
def test_on_a_terminal_it_asks_and_without_one_it_goes_on(said, taken, monkeypatch):
    if said:
        mine, theirs = pty.openpty()
        os.write(mine, said.encode())
        monkeypatch.setattr("sys.stdin", os.fdopen(theirs))
    else:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert cast.agreed("artifacts/m.gguf") is taken
