"""A step's command line is its function's signature."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from conftest import ROOT
from ingot.base.options import Limits, ReadingFile, call
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint


@dataclass(kw_only=True)
class Mapping:
    tp: Annotated[int, "ranks"] = 1
    layers: tuple[str, ...] = ()


def everything(
    gguf: Annotated[Path, "the file to write"],
    dtype: Annotated[str, "of the matrices", ("f16", "f32")],
    ranks: Annotated[list[Path], "archives"],
    mapping: Mapping,
    checkpoint: Checkpoint | None = None,
    reading: ReadingFile | None = None,
    limit: Limits = (),
    settings: Annotated[dict[str, Any] | None, "as JSON"] = None,
    whole: bool = False,
    wait_: float = 1.5,
    flags: Annotated[list[str], "after --"] = (),
) -> dict:
    return dict(locals())


LEAST = ["--gguf", "m.gguf", "--dtype", "f16", "--ranks", "a", "b"]


def test_what_is_not_said_is_the_default():
    assert call(everything, LEAST) == {
        "gguf": Path("m.gguf"), "dtype": "f16", "ranks": [Path("a"), Path("b")],
        "mapping": Mapping(), "checkpoint": None, "reading": None, "limit": [], "settings": None,
        "whole": False, "wait_": 1.5, "flags": [],
    }  # fmt: skip


def test_each_kind_of_option_has_its_type(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    words = ["--tp", "8", "--layers", "x", "y", "--checkpoint", str(tmp_path), "--reading", "r"]
    words += ["--limit", "a=1", "--settings", '{"x": 1}', "--whole", "--wait", "2"]
    found = call(everything, [*LEAST, *words, "--", "--no-flag"])
    assert found["mapping"] == Mapping(tp=8, layers=("x", "y"))
    assert found["checkpoint"]["config.json"] == tmp_path / "config.json"
    assert (found["reading"], found["limit"]) == (Path("r"), ["a=1"])
    assert (found["settings"], found["whole"], found["wait_"]) == ({"x": 1}, True, 2.0)
    assert found["flags"] == ["--no-flag"]
    with pytest.raises(Refused, match="missing, expected a checkpoint's folder"):
        call(everything, [*LEAST, "--checkpoint", str(tmp_path / "none")])


@pytest.mark.parametrize(
    "words, said",
    [
        (LEAST[2:], "the following arguments are required: --gguf"),
        ([*LEAST, "--dtype", "f8"], "invalid choice: 'f8' (choose from 'f16', 'f32')"),
        ([*LEAST, "--tp", "x"], "argument --tp: invalid int value"),
        ([*LEAST, "--settings", "x"], "argument --settings: invalid"),
        ([*LEAST, "--other"], "unrecognized arguments: --other"),
    ],
)
def test_what_it_cannot_be_is_said(words, said, capsys):
    with pytest.raises(SystemExit):
        call(everything, words)
    assert said in capsys.readouterr().err


def test_help_says_what_each_is_and_its_default(capsys):
    with pytest.raises(SystemExit):
        call(everything, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "A step's command line is its function's signature." in text
    assert "--dtype DTYPE of the matrices: f16, f32" in text
    assert "--tp TP ranks (default: 1)" in text and "--wait WAIT" in text


PROGRAM = """
import atexit, gc, sys, types
sys.modules |= {name: types.ModuleType(name) for name in sys.argv[1:]}
from ingot.base.options import step
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 1000))
def nothing(): pass
step(nothing)
"""


@pytest.mark.parametrize("imported, frozen", [((), True), (("iree.runtime",), False)])
def test_a_step_looks_for_no_garbage_among_what_it_imported(imported, frozen):
    """Nor where it ends: Python itself would look behind the functions that are called at the end.

    But IREE's bindings print 200 lines where nobody does.
    """
    program = PROGRAM.replace("sys.argv[1:]", repr(imported))
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=ROOT / "scripts", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"50000 {frozen}\n"
