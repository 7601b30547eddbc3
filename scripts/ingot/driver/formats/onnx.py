"""Rows of ONNX, and of the TensorRT for RTX engine that is built from it."""

from ingot.driver.formats.model import Model
from ingot.driver.formats.table import GB, MB, Cost, Format, Work, read_through, whole_model
from ingot.driver.job import Job


def export(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint; the graph beside the float16 tensors takes 3 MB."""
    if not model.config:
        return None
    files = {job.writes[0]: model.tensor_bytes("f16") + 3 * MB}
    return Work(Cost(1.0, 2.0, 150, 10), model.checkpoint_bytes() / GB, files)


def build(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    files = {job.writes[0]: model.tensor_bytes("f16") + 3 * MB}
    return Work(Cost(1.5, 4.0, 350, 3000), model.checkpoint_bytes() / GB, files)


ROWS = (
    Format(
        name="onnx",
        what="a decoder without KV cache in ONNX, opset 20, float16",
        steps={
            "export_onnx": export,
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
            "build_rtx": build,
            "verify_rtx": read_through(Cost(2.0, 10.0, 350, 3000)),
        },
        sizes=whole_model,
        whole="TensorRT for RTX is for one GPU",
        record="a second build, byte by byte, and its graph's own record",
        chart="engine",
    ),
)
