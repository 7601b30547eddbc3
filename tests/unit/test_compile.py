"""The compiler is started again where it falls asleep, and finds its linker wherever it lies."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.formats.iree import attention

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


@pytest.mark.slow
def test_a_compiler_in_a_path_with_a_space_finds_its_linker(python, tmp_path):
    """IREE hands the linker's path to a shell as it is."""
    there = python("iree").parents[1] / "lib/python3.11/site-packages/iree/compiler/_mlir_libs"
    (folder := tmp_path / "a home").mkdir()
    for name in ("iree-compile", "iree-lld"):
        shutil.copy(there / name, folder)
    for path in there.glob("lib*"):
        (folder / path.name).symlink_to(path)
    compiler = folder / "iree-compile"
    command = [compiler, "-", "-o", tmp_path / "m.vmfb", "--iree-hal-target-device=local"]
    command += ["--iree-hal-local-target-device-backends=llvm-cpu"]
    program = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { %0 = arith.addf %a, %a : tensor<4xf32>\n"
    program += "return %0 : tensor<4xf32> }"
    codes = [
        subprocess.run([*command, *more], input=program, text=True, check=False).returncode
        for more in ((), compile_vmfb.linker(str(compiler)))
    ]
    assert codes == [1, 0]
    assert not compile_vmfb.linker(str(there / "iree-compile")), (
        "a path that a shell reads as it is"
    )


def test_tiles_are_named_for_cpus_unless_the_flags_name_a_library(tmp_path):
    cpu, own = "--iree-hal-local-target-device-backends=llvm-cpu", f"-{attention.FLAG}=own.mlir"
    (flag,) = compile_vmfb.tiles([cpu], tmp_path)
    library = flag.removeprefix(f"--{attention.FLAG}=").removesuffix(attention.ENTRY)
    assert Path(library).read_text() == attention.library()
    for flags in ([], ["--iree-hip-target=gfx942"], [cpu, own], [cpu, "@flags"]):
        assert not compile_vmfb.tiles(flags, tmp_path), flags
    with pytest.raises(Refused, match="has an @"):
        compile_vmfb.tiles([cpu], tmp_path / "a@b")
