"""The row of GGUF."""

from ingot.driver.formats.model import Model
from ingot.driver.formats.table import GB, Cost, Format, Target, Work, read_through, whole_model
from ingot.driver.job import Job
from ingot.iree import irpa

FLOATS = ("f32", "f16", "bf16", "q8_0")  # dtypes that the converter writes
K_QUANTS = ("q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q6_k")  # variants that libllama writes


def file_bytes(model: Model, dtype: str) -> int:
    """The tensors, and 65 bytes per token of the vocabulary: its text and what it is."""
    return irpa.align(model.tensor_bytes(dtype) + 65 * model.config.vocab, irpa.PAGE)


def convert(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    size = file_bytes(model, model.dtype(job.wildcards.get("dtype", "")))
    return Work(Cost(0.2, 2.0, 40), model.checkpoint_bytes() / GB, {job.writes[0]: size})


def quantize(job: Job, model: Model) -> Work | None:
    """Unit: a GB of float32, of which about 0.3 is left."""
    if not model.config:
        return None
    cost, size = Cost(1.0, 30.0, 300), 0.3 * file_bytes(model, model.dtype())
    return Work(cost, model.tensor_bytes("f32") / GB, {job.writes[0]: size})


def refuse(target: Target) -> str | None:
    if target.record and target.variant in K_QUANTS:
        return "k-quants are libllama's own: there is no lossless source to compare with"
    return None


ROWS = (
    Format(
        name="gguf",
        what="GGUF at the model's dtype, or at the one named",
        steps={
            "safetensors_to_gguf": convert,
            "quantize_gguf": quantize,
            "verify_gguf": read_through(Cost(0.3, 6.0, 53, 1090)),
        },
        sizes=whole_model,
        whole="a GGUF file holds the whole model, and servers split it themselves",
        variants=lambda catalogue, tp: [*FLOATS, *K_QUANTS],
        refuse=refuse,
        record="the checkpoint, value by value, and key by key",
        chart="gguf",
    ),
)
