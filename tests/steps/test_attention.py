"""What iree-compile makes of a prompt's attention on CPUs, told its tiles by us."""

import json
import re
import subprocess

import pytest

import forging
from conftest import ROOT
from forgeries import Forgery
from ingot.driver.catalogue import schema
from ingot.formats.iree import attention

FLAGS = schema.read(ROOT / schema.FILE)["hardware"]["cpu"]["flags"]
TARGET = "--iree-hal-target-device=local"
RUN = """
import json, sys
import numpy as np
from iree import runtime as rt
random = np.random.default_rng(0)
arrays = [random.standard_normal(shape, np.float32) for shape in json.loads(sys.argv[2])]
config = rt.Config("local-task")
program = rt.VmModule.copy_buffer(config.vm_instance, open(sys.argv[1], "rb").read())
module = rt.load_vm_module(program, config)
found = module.attention(*arrays).to_host()
q, k, v, mask = (array.astype(np.float64) for array in arrays)
mask = mask.reshape(*mask.shape[:-2], *[1] * (q.ndim - mask.ndim), *mask.shape[-2:])
k, v = (np.swapaxes(array, -2, -3) for array in (k, v))
k, v = (np.expand_dims(array, -3) if array.ndim < q.ndim else array for array in (k, v))
scores = q @ np.swapaxes(k, -1, -2) / 4 + mask
weights = np.exp(scores - scores.max(-1, keepdims=True))
wanted = np.moveaxis(weights / weights.sum(-1, keepdims=True) @ v, -2, 0)
print(np.abs(found - wanted).max())
"""


def program(outer, size, masked):
    """Attention of any number of tokens; `outer` are the dimensions before them, `masked` those of masks.

    Of several `outer` the last are the queries that share a head of keys and values.  Keys and values lie
    in pages, a token's heads beside each other, and so does what is found: or dimensions would be joined.
    """
    names = [f"d{n}" for n in range(len(outer) + 4)]
    mine, (m, n, k1, k2) = names[: len(outer)], names[len(outer) :]
    *batch, heads = mine[: len(kept(outer))]
    pages = [(*batch, k2, heads, one) for one in (k1, n)]
    maps = [(*mine, m, k1), *pages, (), (*mine[: len(masked)], m, k2), (m, *mine, n)]
    maps = [f"affine_map<({', '.join(names)}) -> ({', '.join(one)})>" for one in maps]
    of = "x".join(map(str, outer))
    held = "x".join(map(str, (*kept(outer)[:-1], "?", kept(outer)[-1])))
    values, keys = f"tensor<{of}x?x{size}xf32>", f"tensor<{held}x{size}xf32>"
    mask = f"tensor<{''.join(f'{count}x' for count in masked)}?x?xf32>"
    out = f"tensor<?x{of}x{size}xf32>"
    return f"""
func.func @attention(%q: {values}, %k: {keys}, %v: {keys}, %mask: {mask}) -> {out} {{
  %scale = arith.constant 0.25 : f32
  %axis = arith.constant {len(outer)} : index
  %tokens = tensor.dim %q, %axis : {values}
  %empty = tensor.empty(%tokens) : {out}
  %found = iree_linalg_ext.attention {{indexing_maps = [{", ".join(maps)}]}}
    ins(%q, %k, %v, %scale, %mask : {values}, {keys}, {keys}, f32, {mask}) outs(%empty : {out}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {out}
  return %found : {out}
}}
"""


def kept(outer):
    """The dimensions that keys and values have before tokens."""
    return outer[:-1] if len(outer) > 1 else outer


@pytest.mark.slow
@pytest.mark.parametrize(
    "outer, size, masked, tokens",  # the last of a tile
    [
        ((4,), 64, (4,), 2),
        ((2,), 128, (), 1),  # of several devices: one mask for all heads
        ((2, 2), 32, (2, 2), 4),
        ((2, 2), 80, (), 1),
        ((2, 2, 2), 256, (2,), 1),
    ],
)
def test_a_prompts_attention_has_our_tiles_and_the_right_numbers(
    outer, size, masked, tokens, ok, python, tmp_path
):
    (tmp_path / "a.mlir").write_text(program(outer, size, masked))
    dump = f"--iree-hal-dump-executable-configurations-to={tmp_path}/dump"
    words = ("--mlir", tmp_path / "a.mlir", "--vmfb", tmp_path / "a.vmfb", "--", TARGET, *FLAGS)
    said = ok("iree", "compile_vmfb.py", *words, dump).stdout
    assert "not with our tiles" not in said
    text = "".join(path.read_text() for path in (tmp_path / "dump").iterdir())
    (found,) = re.findall(r"linalg_ext\.attention .*vector_common_parallel = \[(.*?)\]", text)
    assert found == ", ".join(["1"] * len(outer) + [str(tokens), str(size), "0", "0"])
    for count in (33, 48):  # tokens that no tile divides, and that all do
        *batch, heads = kept(outer)
        keys = [[*batch, count, heads, size]] * 2
        shapes = [[*outer, count, size], *keys, [*masked, count, count]]
        command = [python("iree"), "-c", RUN, tmp_path / "a.vmfb", json.dumps(shapes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(done.stdout) < 1e-4


@pytest.mark.slow
def test_where_the_compiler_refuses_the_tiles_it_takes_its_own(forked, tmp_path):
    larger = (("LARGEST = 2048", "LARGEST = 8192"),)
    one = Forgery("tiles are larger", ("vmfb",), "formats/iree/attention.py", larger)
    scripts = forging.forge(one, tmp_path)
    (tmp_path / "a.mlir").write_text(program((4,), 64, (4,)))
    words = ("--mlir", tmp_path / "a.mlir", "--vmfb", tmp_path / "a.vmfb", "--", TARGET, *FLAGS)
    done = forked("iree", scripts / "compile_vmfb.py", *words)
    assert done.returncode == 0, done.stderr
    assert "not with our tiles of attention: " in done.stdout
    assert (tmp_path / "a.vmfb").exists()


def test_no_tile_is_larger_than_the_compiler_takes():
    for size in attention.SIZES:
        tokens, keys = attention.tiles(size)
        assert tokens * keys * size <= attention.LARGEST, size
