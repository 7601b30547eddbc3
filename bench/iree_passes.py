"""The passes of iree-compile over a program of many weights on several devices, and how they grow.

    .venv/bin/python bench/iree_passes.py [--devices 8] [--blocks 8 16] [--to vm]
    python iree_passes.py --compiler iree-compile        without Ingot: it needs iree-base-compiler alone

A block is seven products per device, whose sum goes back to each device, as in a transformer over several;
no kernel depends on the number of blocks.  docs/upstream.md says what this shows.
"""

import argparse
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INGOT = Path(__file__).resolve().parents[1] / ".venv/bin/ingot"
SIZE, LEAST = 64, 0.05  # of a matrix; seconds of a pass that is shown
WEIGHTS = ("q", "k", "v", "o", "gate", "up", "down")
MATRIX = f"tensor<{SIZE}x{SIZE}xf32>"
PRODUCT = f"({MATRIX}, {MATRIX}) -> {MATRIX}"


def program(blocks: int, devices: int) -> str:
    """The module's text."""
    place = "#hal.device.promise<@__device_{}>"
    lines = ["module @model {"]
    names = [
        (f"blk.{block}.{name}.shard.{device}", device)
        for block in range(blocks)
        for name in WEIGHTS
        for device in range(devices)
    ]
    for name, device in names:
        lines.append(
            f'  util.global private @"{name}" {{stream.affinity = {place.format(device)}}} = '
            f'#stream.parameter.named<"model"::"{name}"> : {MATRIX}'
        )
    lines += [
        f"  util.func private @product(%x: {MATRIX}, %w: {MATRIX}) -> {MATRIX} {{",
        "    %zero = arith.constant 0.0 : f32",
        f"    %empty = tensor.empty() : {MATRIX}",
        f"    %out = linalg.fill ins(%zero : f32) outs(%empty : {MATRIX}) -> {MATRIX}",
        f"    %y = linalg.matmul ins(%x, %w : {MATRIX}, {MATRIX}) outs(%out : {MATRIX}) -> {MATRIX}",
        f"    util.return %y : {MATRIX}",
        "  }",
    ]
    arguments = ", ".join(
        f"%x.{device}: {MATRIX} {{iree.abi.affinity = {place.format(device)}}}"
        for device in range(devices)
    )
    result = f"{MATRIX} {{iree.abi.affinity = {place.format(0)}}}"
    lines.append(f"  func.func @run({arguments}) -> ({result}) {{")
    now = [f"%x.{device}" for device in range(devices)]
    for block in range(blocks):
        part = []
        for device in range(devices):
            here = now[device]
            for name in WEIGHTS:
                one = f"{block}.{device}.{name}"
                lines += [
                    f'    %w.{one} = util.global.load @"blk.{block}.{name}.shard.{device}" : {MATRIX}',
                    f"    %y.{one} = util.call @product({here}, %w.{one}) : {PRODUCT}",
                ]
                here = f"%y.{one}"
            part.append(here)
        now = exchanged(lines, block, part)
    lines += [f"    return {now[0]} : {MATRIX}", "  }", "}"]
    return "\n".join(lines) + "\n"


def exchanged(lines: list[str], block: int, parts: list[str]) -> list[str]:
    """The sum of the devices' parts, added up on the first of them and sent back to each."""
    first, last = "#hal.device.promise<@__device_0>", ""
    for device, part in enumerate(parts):
        moved, new = f"%m.{block}.{device}", f"%s.{block}.{device}"
        lines.append(f"    {moved} = flow.tensor.transfer {part} : {MATRIX} to {first}")
        if last:
            lines.append(f"    {new} = arith.addf {last}, {moved} : {MATRIX}")
        last = new if last else moved
    sums = [last]
    for device in range(1, len(parts)):
        back, place = f"%b.{block}.{device}", f"#hal.device.promise<@__device_{device}>"
        lines.append(f"    {back} = flow.tensor.transfer {last} : {MATRIX} to {place}")
        sums.append(back)
    return sums


def seconds(compiler: str, blocks: int, devices: int, end: str) -> dict[str, float]:
    """Wall time of each pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.mlir")
        path.write_text(program(blocks, devices))
        targets = [f"--iree-hal-target-device=local[{device}]" for device in range(devices)]
        done = subprocess.run(
            [compiler, path, "-o", "/dev/null", "--iree-hal-local-target-device-backends=llvm-cpu",
             *targets, "--iree-opt-const-eval=false", f"--compile-to={end}", "--mlir-timing",
             "--mlir-timing-display=list", "--mlir-disable-threading"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found: dict[str, float] = {}
    for line in done.stderr.splitlines():
        if said := re.match(r"\s+([\d.]+) \(\s*[\d.]+%\)\s+(.+)$", line):
            found[said[2].strip()] = found.get(said[2].strip(), 0) + float(said[1])
    return found


def compiler() -> str:
    """Ingot's own, where this is a bench of it."""
    if not INGOT.exists():
        return "iree-compile"
    done = subprocess.run([INGOT, "toolchain", "iree"], capture_output=True, text=True, check=True)
    return str(Path(done.stdout.strip()) / "bin/iree-compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--blocks", type=int, nargs=2, default=[8, 16])
    parser.add_argument("--to", default="vm", help="the phase to compile to")
    parser.add_argument("--compiler", help="iree-compile (default: Ingot's)")
    options = parser.parse_args()
    tool = options.compiler or compiler()
    if not shutil.which(tool):
        sys.exit(f"{tool}: no such program, expected iree-compile; pip install iree-base-compiler")
    few, many = (seconds(tool, blocks, options.devices, options.to) for blocks in options.blocks)
    grows = math.log(options.blocks[1] / options.blocks[0])
    print(f"seconds of {options.blocks[0]} and {options.blocks[1]} blocks, and the exponent")
    for name, one in sorted(many.items(), key=lambda pair: -pair[1]):
        before = few.get(name, 0)
        if before and (one >= LEAST or name == "Total") and "ipeline" not in name:
            print(f"{before:8.2f} {one:8.2f} {math.log(one / before) / grows:6.2f}  {name}")


if __name__ == "__main__":
    main()
