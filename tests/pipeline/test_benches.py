"""Each file of bench/ on its smallest input: that it runs, not what it measures."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import slurm
from conftest import ROOT

# the words it is started with; what its last lines hold; a limit that a busy machine breaks is no failure
BENCHES = {
    "adapter": (["--layers", "1", "--turns", "1"], "of the plain one"),
    "board": ([], "of a core"),
    "breadth": (["--most", "1"], "1 tried, "),
    "convert": (
        ["--layers", "1", "--only", "f16", "--tp", "8"],
        "All bytes equal theirs, those of the sets at tp 8",
    ),
    "quantised": (["--gigabytes", "0.1", "--only", "w4a16", "4bit"], "All tensors equal"),
    "families": (["--gigabytes", "0.05", "--only", "Qwen3-MoE", "Gemma 3"], "All bytes equal"),
    "fuzz": (["--seconds", "1", "--reader", "GGUF"], "GGUF"),
    "io_faults": (["--calls", "1", "--moments", "0"], "1"),
    "iree_passes": (["--devices", "2", "--blocks", "2", "4"], "Total"),
    "kills": (
        ["--target", "artifacts/demo_tp8.irpa", "--times", "6"],
        "6 ended right, 6 with a clean",
    ),
    "lost_heads": (["--only", "done"], ""),
    "many_records": (["--records", "40"], "hit"),
    "onnx": (["skeleton"], ""),
    "onnx_versions": (["pinned", "--kind", "portable", "fused int8"], "26 of 26"),
    "plan": (["demo.gguf"], "demo.gguf"),
    "rank": (["--gigabytes", "0.01", "--layouts", "made_tp8.irpa", "--last"], "; equal"),
    "registry": (["--megabytes", "4"], ""),
    "serving": (["--only", "single", "--seconds", "0.2", "--rounds", "1"], "GenAI"),
    "small_jobs": (["--jobs", "2"], "job"),
    "store": (["bytes"], ""),
    "stream": (["--gigabytes", "0.01", "--window", "4", "--ends", ".q8_0.gguf"], "keys equal"),
    "toolchains": (["hub", "--check"], "hub"),
    "trtllm": (["--layers", "1"], ""),
    "weightless": (["llama8b_tp1", "--layers", "1"], "llama8b_tp1"),
    "wrong_hits": (["--only", "wildcard", "--systems", "ingot,snakemake"], "ingot: 0 wrong hits"),
}
ELSEWHERE = {  # run by another test, or no command
    "gpu": "tests/steps/test_gpu.py", "gpu_kit": "tests/steps/test_gpu.py",
    "gpu_llama": "tests/steps/test_gpu.py",
    "verifier_faults": "tests/steps/test_verifier_faults.py", "mutations": "a part of wrong_hits",
    "reproduce": "needs root, below",
}  # fmt: skip


def test_each_bench_is_run_by_a_test():
    there = {path.stem for path in ROOT.glob("bench/*.py")}
    assert there == {*BENCHES, *ELSEWHERE}


@pytest.mark.parametrize("name", BENCHES)
def test_runs_on_its_smallest_input(name, tmp_path):
    if name == "lost_heads":
        slurm.skip_where_missing()
    words, said = BENCHES[name]
    done = subprocess.run(
        [ROOT / ".venv/bin/python", ROOT / f"bench/{name}.py", *words], cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "INGOT_BENCH_DIR": str(tmp_path), "INGOT_BENCH": str(tmp_path)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert said in done.stdout, done.stdout + done.stderr


@pytest.mark.root("two users")
def test_another_user_reproduces_the_bytes():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        words = ["--folder", f"{folder}/r", "--targets", "artifacts/demo.gguf"]
        done = subprocess.run(
            [ROOT / ".venv/bin/python", ROOT / "bench/reproduce.py", *words],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0 and '"files": 1, "same": 1' in done.stdout, (
        done.stdout + done.stderr
    )
