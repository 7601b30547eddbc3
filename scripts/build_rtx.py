"""Build a TensorRT for RTX engine from an ONNX graph.  Runs in envs/rtx; needs no GPU.

A decoder without KV cache: proof that ONNX becomes an engine here, not something to serve with.
TensorRT for RTX is proprietary: its license says what may be done with an engine.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.formats.tensorrt import rtx as engines


def build_rtx(
    onnx: Annotated[Path, "artifacts/M.prefill.onnx"],
    rtx: Annotated[Path, "the folder to write"],
) -> None:
    longest = engines.longest(onnx)
    with stderr_to_log(f"{rtx}: building by TensorRT for RTX"), replacing(rtx) as partial:
        partial.mkdir()
        built = engines.build_engine(onnx / "model.onnx", longest)
        (partial / "model.engine").write_bytes(built)
        sealed.fill(partial, engines.texts(longest))


if __name__ == "__main__":
    step(build_rtx)
