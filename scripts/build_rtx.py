"""Build a TensorRT for RTX engine from an ONNX graph.  Runs in envs/rtx; needs no GPU.

A decoder without KV cache: proof that ONNX becomes an engine here, not something to serve with.
TensorRT for RTX is proprietary: its license says what may be done with an engine.
"""

import argparse
from pathlib import Path

from ingot.entry import run
from ingot.files import sealed
from ingot.files.atomic import replacing
from ingot.tensorrt import rtx
from ingot.terminal.console import stderr_to_log


def build_rtx(onnx: Path, out: Path) -> None:
    longest = rtx.longest(onnx)
    with stderr_to_log(f"{out}: building by TensorRT for RTX"), replacing(out) as partial:
        partial.mkdir()
        built = rtx.build_engine(onnx / "model.onnx", longest)
        (partial / "model.engine").write_bytes(built)
        sealed.fill(partial, rtx.texts(longest))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--onnx", type=Path, required=True, help="artifacts/M.prefill.onnx")
    parser.add_argument("--rtx", type=Path, required=True, dest="out", help="the folder to write")
    build_rtx(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
