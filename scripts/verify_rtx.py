"""Build a TensorRT for RTX engine again and compare the bytes.  Runs in envs/rtx.

The engine itself cannot be loaded without a GPU.  That its graph gives the right tokens is on the
record of that graph, which must have passed.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.base.options import RecordFile, step
from ingot.base.refused import Refused
from ingot.formats.tensorrt import rtx as rtx_of
from ingot.parity import verification


def verify_rtx(
    rtx: Annotated[Path, "artifacts/M.rtx"],
    onnx: Annotated[Path, "artifacts/M.prefill.onnx"],
    onnx_record: Annotated[Path, "the record of --onnx"],
    record: RecordFile,
) -> None:
    sha256 = verification.digest(rtx)
    graph, longest = read_json(onnx_record), rtx_of.longest(onnx)
    texts = rtx_of.texts(longest)
    sealed.hold(rtx, {**texts, "model.engine": rtx / "model.engine"})
    if graph["sha256"] != verification.digest(onnx) or graph["result"] != "passed":
        raise Refused(f"{onnx_record}: is not about {onnx}, expected its record")
    with stderr_to_log(f"{rtx}: building again"):
        again = rtx_of.build_engine(onnx / "model.onnx", longest)
    if again != (rtx / "model.engine").read_bytes():
        raise Refused(
            f"{rtx / 'model.engine'}: a second build gives other bytes, expected the same"
        )
    verification.write(
        record,
        rtx,
        sha256,
        "a second build, byte by byte; its graph: " + graph["reference"],
        {**graph["checks"], "built_again_equal": True},
        graph=graph["sha256"],
        versions=verification.versions("tensorrt_rtx"),
    )


if __name__ == "__main__":
    step(verify_rtx)
