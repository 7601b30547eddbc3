"""bench/gpu.py on a machine without a GPU: the CPU stands in for it; the rest is the real way."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.formats.iree.program import Program, refused_by_runtime

BENCH = ROOT / "bench"


def run(*command, **more):
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=600, check=False, **more
    )  # fmt: skip


@pytest.mark.slow
def test_a_kit_checks_programs_where_nothing_can_be_reached(shared, tmp_path):
    """Its own folder, its own interpreter, no network: as on a machine that has a GPU and no more."""
    kit = tmp_path / "kit"
    environment = {**os.environ, "INGOT_STORE": str(shared.store)}
    words = (BENCH / "gpu_kit.py", kit, "--hardware", "cpu")
    made = run(sys.executable, *words, env=environment)
    assert made.returncode == 0, made.stderr
    assert float(made.stdout.split(": ")[1].split(" MB")[0]) < 60
    away = ("unshare", "--net", "--map-root-user", sys._base_executable, "-I")  # ty: ignore[missing-attribute]
    words = ("--kit", kit, "--json", tmp_path / "gpu.json")
    done = run(*away, kit / "bench/gpu.py", *words, "--driver", "local-task", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads((tmp_path / "gpu.json").read_text())}
    for tp in (1, 2):
        row = rows[f"demo_tp{tp} for cpu"]
        assert (row["result"], row["greedy_equal"]) == ("passed", 26)
    done = run(*away, kit / "bench/gpu.py", *words, cwd=tmp_path)
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 0 and {row["result"] for row in rows[1:]} == {"not possible"}


@pytest.mark.slow
def test_gguf_files_are_asked_of_a_libllama_that_was_built_for_a_gpu(shared, python, tmp_path):
    """The toolchain's own stands in for it; a file of another type than is said is told apart."""
    files = {
        "reference": "demo.reference.npz",
        "texts": "demo.texts.json",
        "scores": "demo.scores.npy",
    }
    kinds = {kind: f"demo.{kind}.gguf" for kind in ("f32", "q8_0", "q4_0")}
    paths = {word: str(tmp_path / "artifacts" / name) for word, name in {**files, **kinds}.items()}
    targets = [f"artifacts/{Path(path).name}" for path in paths.values()]
    done = shared(tmp_path, "--", *targets)
    assert done.returncode == 0, done.stderr
    library = python("llamacpp").parents[1] / "llama.cpp/bin/libllama.so"
    known = {word: paths[word] for word in files} | {"pre_tokenizer": "llama-bpe", "context": 512}

    def ask(*cases):
        said = [{**known, "gguf": paths[file], "dtype": kind} for file, kind in cases]
        (tmp_path / "cases.json").write_text(json.dumps(said))
        words = (BENCH / "gpu_llama.py", "ask", library, tmp_path / "cases.json")
        done = run(python("llamacpp"), *words)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done, [json.loads(line) for line in lines]

    done, found = ask(("f32", "f32"), ("q8_0", "q8_0"))
    assert done.returncode == 0, done.stderr
    assert found[0]["greedy_equal"] == 26 and all(0 <= one["mean_kl"] < 1e-3 for one in found)
    assert found[0]["limits"] == {"mean_kl": 1e-4}  # of f16: a GPU computes in TF32
    done, found = ask(("q4_0", "f16"))
    assert done.returncode == 1 and "expected at most" in found[0]["why"] in done.stderr
    words = ("speed", library, paths["q8_0"], "--prompt", 8, "--generate", 2)
    done = run(python("llamacpp"), BENCH / "gpu_llama.py", *words)
    assert json.loads(done.stdout.splitlines()[-1])["generation"] > 0, done.stderr


def test_a_libllama_for_a_gpu_needs_compilers_and_a_source(tmp_path):
    words = (BENCH / "gpu_llama.py", "build", tmp_path / "none", tmp_path / "out")
    done = run(sys.executable, *words, env={"PATH": str(tmp_path)})
    assert done.returncode == 1 and done.stderr.startswith(
        "nvcc is not on the PATH, expected nvcc, "
    )
    for name in ("nvcc", "cmake", "ninja", "g++"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = run(sys.executable, *words, env={"PATH": str(tmp_path)})
    assert done.returncode == 1 and done.stderr.startswith(
        f"{tmp_path}/none: missing, expected llama_cpp"
    )


@pytest.mark.parametrize(
    "words", ["gpu_llama.py ask no.so x", "gpu_llama.py speed no.so x", "gpu.py --libllama no.so"]
)
def test_a_libllama_that_is_not_there_is_one_line(words, tmp_path):
    name, *others = words.split()
    done = run(sys.executable, BENCH / name, *others, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("no.so: missing, expected")


def test_two_ranks_need_two_gpus():
    """On one H100 the ranks of a program waited for each other without end."""
    program = object.__new__(Program)
    program.vmfb = Path("m.vmfb")
    driver = SimpleNamespace(query_available_devices=lambda: [{"device_id": 1}])
    program.rt = SimpleNamespace(get_driver=lambda name: driver)
    with pytest.raises(Refused, match="cuda finds 1 of 2 devices, expected all"):
        program.devices("cuda", 2)


def test_what_the_runtime_refuses_is_one_line(tmp_path):
    said = r"m\.vmfb: first, expected a program that runs on this device"
    with pytest.raises(Refused, match=said), refused_by_runtime(tmp_path / "m.vmfb"):
        raise ValueError("first\nsecond")
