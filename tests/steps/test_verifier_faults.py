"""Verifications catch what is planted: a sample of bench/verifier_faults.py, which plants them all."""

import json
import os
import subprocess
import sys

import pytest

import faults
from conftest import ROOT


@pytest.mark.slow
def test_a_sample_of_every_kinds_faults_is_caught(tmp_path):
    kinds = ("gguf", "k-quant", "split", "irpa", "ranks", "trtllm-ckpt")
    command = [sys.executable, ROOT / "bench/verifier_faults.py", "--json", "--most", "5"]
    environment = {**os.environ, "INGOT_STORE": str(tmp_path / "store")}
    done = subprocess.run(
        [*map(str, command), "--kind", *kinds], env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(kinds) <= set(faults.KINDS)
    for kind, row in found.items():
        assert row["caught"] == row["faults"] == 5 and not row["tracebacks"], (kind, done.stderr)
