"""Rows of ONNX, and of the TensorRT for RTX engine that is built from it."""

from ingot.driver.formats.model import Model
from ingot.driver.formats.table import GB, MB, Cost, Format, Step, Work, read_through, whole_model
from ingot.driver.job import Job

GRAPH = 3 * MB  # beside the float16 tensors


def make(cost: Cost) -> Step:
    """A step whose unit is a GB of the checkpoint."""

    def work(job: Job, model: Model) -> Work | None:
        if not model.config:
            return None
        files = {job.writes[0]: model.tensor_bytes("f16") + GRAPH}
        return Work(cost, model.checkpoint_bytes() / GB, files)

    return work


ROWS = (
    Format(
        name="onnx",
        what="a decoder without KV cache in ONNX, opset 20, float16",
        steps={
            "export_onnx": make(Cost(1.0, 2.0, 150, 10)),
            "verify_onnx": read_through(Cost(2.0, 40.0, 350, 3000)),
        },
        sizes=whole_model,
        whole="an ONNX graph holds the whole model",
        record="transformers in float32: greedy tokens, by ONNX Runtime",
        chart="irpa",
    ),
    Format(
        name="rtx",
        what="a TensorRT for RTX engine (proprietary compiler, optional)",
        steps={
            "build_rtx": make(Cost(1.5, 4.0, 350, 3000)),
            "verify_rtx": read_through(Cost(2.0, 10.0, 350, 3000)),
        },
        sizes=whole_model,
        whole="TensorRT for RTX is for one GPU",
        record="a second build, byte by byte, and its graph's own record",
        chart="engine",
    ),
)
