"""bench/gpu.py on a machine without a GPU: the CPU stands in for it; the rest is the real way."""

import json
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
def test_a_kit_checks_programs_where_nothing_can_be_reached(tmp_path):
    """Its own folder, its own interpreter, no network: as on a machine that has a GPU and no more."""
    kit = tmp_path / "kit"
    made = run(sys.executable, BENCH / "gpu_kit.py", kit, "--hardware", "cpu")
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
