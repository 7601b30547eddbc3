"""A compiler that falls asleep is started again; one that works is left alone."""

import sys

import pytest

from conftest import ROOT
from ingot.base.refused import Refused

sys.path.insert(0, str(ROOT / "scripts"))
import compile_vmfb

SLEEPS_ONCE = """
import pathlib, sys, time
mark = pathlib.Path(sys.argv[1])
if not mark.exists():
    mark.touch()
    time.sleep(60)
print(sys.stdin.read(), file=sys.stderr)
"""
SLEEPS = "import time; time.sleep(60)"
WORKS = """
import sys, time
end = time.monotonic() + 4
while time.monotonic() < end: sum(range(1000))
sys.exit(3)
"""


@pytest.fixture
def mlir(tmp_path):
    (tmp_path / "m.mlir").write_text("module {}")
    return tmp_path / "m.mlir"


def test_a_compiler_that_falls_asleep_is_started_again_from_the_first_byte(mlir, tmp_path, capsys):
    command = [sys.executable, "-c", SLEEPS_ONCE, str(tmp_path / "mark")]
    done = compile_vmfb.run_awake(command, mlir, idle=0.6)
    assert done.returncode == 0 and done.stderr.strip() == b"module {}"
    assert "m.mlir: the compiler fell asleep, attempt 1" in capsys.readouterr().err


def test_one_that_always_does_is_refused(mlir):
    with pytest.raises(Refused, match=r"m\.mlir: the compiler did nothing for 0 s, 3 times"):
        compile_vmfb.run_awake([sys.executable, "-c", SLEEPS], mlir, idle=0.5)


def test_one_that_works_longer_than_that_is_left_alone(mlir):
    assert compile_vmfb.run_awake([sys.executable, "-c", WORKS], mlir, idle=2).returncode == 3
