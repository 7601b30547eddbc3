"""A program's dispatches are written from those of few blocks, or it is said why not."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT
from ingot.formats.iree import dispatches
from ingot.formats.iree.stitch import TRACED, Unlike, stitch

sys.path.insert(0, str(ROOT / "scripts"))
import compile_vmfb

KERNEL = """\
  flow.executable private @f_dispatch_{at} {{
    flow.executable.export public @f_dispatch_{at}_slot workgroups() -> (index, index, index) {{
      %c1 = arith.constant 1 : index
      flow.return %c1, %c1, %c1 : index, index, index
    }}
    builtin.module {{
      func.func @f_dispatch_{at}_slot(%arg0: i64) {{
{body}
        return
      }}
    }}
  }}
"""


def program(count, number=lambda block: block, last=lambda count: count - 1, odd=None, also=""):
    """Dispatches of `count` blocks, as the compiler prints them: each block's second kernel is its own,
    with number(block) in it, and the one before them holds last(count)."""
    kernels, calls, at = [], [], 0

    def kernel(body):
        nonlocal at
        at += 7  # the compiler leaves out numbers
        kernels.append(KERNEL.format(at=at, body="\n".join(" " * 8 + line for line in body)))
        return f"@f_dispatch_{at}::@f_dispatch_{at}_slot"

    def sum_of(value):
        """Of a number that may be another constant's, which then has one name for both."""
        values = dict.fromkeys((value, 2))
        lines = [f"%c{each}_i64 = arith.constant {each} : i64" for each in values]
        lines += [
            f"%0 = arith.addi %arg0, %c{value}_i64 : i64",
            "%1 = arith.muli %0, %c2_i64 : i64",
        ]
        return lines

    first, every = kernel(sum_of(last(count))), kernel(["%0 = arith.negf %arg0 : f32"])
    weights = [f"__auto.blk.{block}.w" for block in range(count)]
    calls += [f"%{w} = util.global.load immutable @{w} : tensor<4xf32>" for w in weights]
    calls.append(f"%0 = flow.dispatch {first}() : () -> tensor<4xf32>")
    for block, weight in enumerate(weights):
        own = kernel(sum_of(number(block)))
        calls.append(
            f"%{3 * block + 1} = flow.dispatch {every}(%{weight}, %{3 * block}) : () -> ()"
        )
        calls.append(f"%{3 * block + 2} = flow.dispatch {own}(%{3 * block + 1}) : () -> ()")
        what = "flow.tensor.clone" if block == odd else "flow.tensor.reshape"
        calls.append(f"%{3 * block + 3} = {what} %{3 * block + 2} : tensor<4xf32>")
    calls += [f"%{3 * count + 1} = flow.dispatch {also}(%0) : () -> ()"] if also else []
    calls.append(f"util.return %{3 * count} : tensor<4xf32>")
    lines = [f"  util.global private @{weight} : tensor<4xf32>" for weight in weights]
    body = ["  util.func public @f() {", *(f"    {call}" for call in calls), "  }"]
    text = ["module {", *lines, "".join(kernels).rstrip("\n"), *body, "}"]
    return "\n".join(text)


def exported(count):
    """A program of `count` blocks as export_mlir.py writes it: traced blocks, and those of stitch.py."""
    blocks = range(TRACED)
    lines = [f"  util.global private @__auto.blk.{k}.w : t" for k in blocks] + [
        "  func.func @f(%a: t) {"
    ]
    for k in blocks:
        lines.append(f"    %w{k} = util.global.load @__auto.blk.{k}.w : t")
        lines.append(f"    %c{k} = torch_c.from_builtin_tensor %w{k} : t")
    lines += [f"    %t{k} = torch.negf %c{k}, %{f't{k - 1}' if k else 'a'} : t" for k in blocks]
    lines += [f"    return %t{TRACED - 1} : t", "  }"]
    return "\n".join(stitch("\n".join(lines), count))


def longer(layers, **changes):
    return dispatches.lengthen([program(count, **changes) for count in dispatches.SHORT], layers)


@pytest.mark.parametrize("layers", [9, 40])
@pytest.mark.parametrize(
    "step, start", [(1, 0), (3, 1)]
)  # block 2's number is another constant's, or not
def test_many_blocks_are_what_the_compiler_would_make_of_them(layers, step, start):
    found = longer(layers, number=lambda block: step * block + start)
    wanted = program(layers, number=lambda block: step * block + start)
    assert dispatches.canonical(found) == dispatches.canonical(wanted)
    names = re.findall(r"flow\.executable private @(\S+)", found)
    assert len(names) == len({*names}) == wanted.count("flow.executable private")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"number": lambda block: block**2}, r"numbers go \[1, 4, 9, 16\]"),
        ({"odd": 3}, "the blocks' operations differ"),
        ({"last": lambda count: count**2}, "are not those of 6, continued"),
        ({"also": "@f_dispatch_28::@f_dispatch_28_slot"}, "is called outside its block"),
    ],
)
def test_what_does_not_go_on_evenly_is_refused(changes, said):
    with pytest.raises(Unlike, match=said):
        longer(20, **changes)


def test_a_program_of_few_blocks_or_of_other_blocks_is_not_shortened():
    with pytest.raises(Unlike, match="has 8 blocks, not more than 8"):
        dispatches.shorten(exported(8))
    odd = exported(20).replace("%s11_0 = torch.negf", "%s11_0 = torch.absf")
    with pytest.raises(Unlike, match="operations differ"):
        dispatches.shorten(odd)
    other = exported(20).replace("%s11_0", "%eleven")  # not as stitch.py names it
    with pytest.raises(Unlike, match="is not its first 5 blocks and its last, continued"):
        dispatches.shorten(other)
    assert [text.count("negf") for text in dispatches.shorten(exported(20))] == [6, 7, 8]


@pytest.fixture
def formed(tmp_path, monkeypatch):
    """formed(flags, returncode, **changes): what is made of 20 blocks on 10 devices where the compiler ends
    so and forms program(count, **changes)."""
    (mlir := tmp_path / "m.mlir").write_text(exported(20))

    def made(flags=(), returncode=0, **changes):
        def run(command, source):
            count = exported_blocks(source)
            Path(command[-1]).write_text(program(count, **changes))
            assert command[-3:-1] == ["--compile-to=flow", "-o"]
            return subprocess.CompletedProcess(command, returncode, None, b"error: no such target")

        monkeypatch.setattr(compile_vmfb, "run_awake", run)
        return compile_vmfb.dispatches_of(mlir, ["iree-compile", "-", *flags], 10, tmp_path)

    return made


def exported_blocks(path):
    return path.read_text().count("negf")


def test_a_deep_program_goes_on_from_dispatches_that_are_written(formed, capsys):
    found = dispatches.canonical(formed().read_text())
    assert found == dispatches.canonical(program(20))
    assert "dispatches of 20 blocks, from those of 6, 7, 8 blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "case, said",
    [
        (
            {"odd": 3},
            "not from the dispatches of a few blocks: Unlike: the blocks' operations differ",
        ),
        (
            {"returncode": 1},
            "not from the dispatches of a few blocks: 6 blocks: error: no such target",
        ),
        ({"flags": ["--iree-opt-data-tiling"]}, ""),
        ({"flags": ["--mlir-timing"]}, ""),
        ({"flags": ["-compile-to=hal"]}, ""),
    ],
)
def test_else_it_is_compiled_whole_and_the_log_says_why(case, said, formed, capsys):
    assert formed(**case) is None
    assert said in capsys.readouterr().out


def test_where_what_is_written_does_not_compile_the_program_is_compiled_whole(
    tmp_path, monkeypatch, capfdbinary
):
    tools = SimpleNamespace(find_tool=lambda name: f"/{name}")
    monkeypatch.setitem(sys.modules, "iree.compiler.tools.binaries", tools)
    (mlir := tmp_path / "m.mlir").write_text(exported(20))
    monkeypatch.setattr(compile_vmfb, "dispatches_of", lambda *_: tmp_path / "flow.mlir")

    def run(command, source):
        fails = "--compile-from=flow" in command
        assert (source == mlir) is not fails
        if not fails:
            Path(command[-1]).write_bytes(b"module")
        return subprocess.CompletedProcess(command, int(fails), None, b"-:1: error: not so\n")

    monkeypatch.setattr(compile_vmfb, "run_awake", run)
    compile_vmfb.compile_vmfb(mlir, tmp_path / "m.vmfb", [])
    assert (tmp_path / "m.vmfb").read_bytes() == b"module"
    said = b"compiled whole, not from the dispatches of a few blocks: -:1: error: not so"
    assert said in capfdbinary.readouterr().out
