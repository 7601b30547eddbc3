"""Rows of GGUF: one file, several quantised ones, a set of smaller files, importance matrices."""

from dataclasses import replace

from ingot.driver.formats.table import (
    GB,
    Cost,
    Format,
    Target,
    Work,
    read_through,
    run_through,
    whole_model,
)  # fmt: skip
from ingot.driver.job import Job
from ingot.driver.known.model import Model
from ingot.iree import irpa
from ingot.llamacpp import quants

FLOATS = ("f32", "f16", "bf16", "q8_0")  # dtypes that the converter writes
BITS = {  # per weight, of what libllama writes: llama.cpp's own table for Llama 3 8B
    "q4_0": 4.6, "q4_1": 5.1, "q5_0": 5.6, "q5_1": 6.0, "q2_k": 3.2, "q3_k_s": 3.6, "q3_k_m": 4.0,
    "q3_k_l": 4.3, "q4_k_s": 4.7, "q4_k_m": 4.9, "q5_k_s": 5.6, "q5_k_m": 5.7, "q6_k": 6.6,
    "iq1_s": 2.0, "iq1_m": 2.2, "iq2_xxs": 2.4, "iq2_xs": 2.6, "iq2_s": 2.7, "iq2_m": 2.9,
    "iq3_xxs": 3.3, "iq3_xs": 3.5, "iq3_s": 3.7, "iq3_m": 3.8, "iq4_xs": 4.4, "iq4_nl": 4.7,
}  # fmt: skip


def file_bytes(model: Model, dtype: str) -> int:
    """The tensors, and 65 bytes per token of the vocabulary: its text and what it is."""
    quantised = dtype in BITS
    tensors = model.tensor_bytes("f32" if quantised else dtype)
    tensors *= BITS[dtype] / 32 if quantised else 1
    return irpa.align(int(tensors) + 65 * model.config.vocab, irpa.PAGE)


def convert(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    size = file_bytes(model, model.dtype(job.wildcards.get("dtype", "")))
    return Work(Cost(0.2, 2.0, 40), model.checkpoint_bytes() / GB, {job.writes[0]: size})


def kinds(job: Job, model: Model) -> list[str]:
    """The types that a job writes."""
    one = job.wildcards.get("quant") or job.wildcards.get("gguf", "").lstrip(".")
    return [one] if one else model.entry["quants"]


def quantize(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint to one type."""
    if not model.config:
        return None
    asked = kinds(job, model)
    size = sum(file_bytes(model, kind) for kind in asked)
    units = model.checkpoint_bytes() / GB * len(asked)
    return Work(Cost(0.5, 25.0, 80), units, {job.writes[0]: size})


def split(job: Job, model: Model) -> Work | None:
    """Unit: a GB copied."""
    if not model.config:
        return None
    size = file_bytes(model, job.wildcards.get("gguf", "").lstrip(".") or model.dtype(""))
    return Work(Cost(0.2, 1.0, 30), size / GB, {job.writes[0]: size})


def imatrix(job: Job, model: Model) -> Work | None:
    """Unit: a thousand tokens times a billion weights."""
    if not model.config:
        return None
    c = model.config
    columns = c.layers * (4 * c.hidden + c.heads * c.head_dim + 2 * c.hidden + c.ffn)
    units = 4000 * model.parameters() / 1e12
    memory = 800 + file_bytes(model, model.dtype("")) / 1e6  # MB: the file is mapped
    return Work(Cost(1.0, 60.0, memory), units, {job.writes[0]: 4 * columns})


def refuse(target: Target) -> str | None:
    if target.variant in quants.BY_IMATRIX and not target.entry.get("imatrix"):
        return f"{target.variant} needs an importance matrix; set models.{target.model}.imatrix to a text"
    return None


def refuse_imatrix(target: Target) -> str | None:
    if not target.entry.get("imatrix"):
        return f"models.{target.model}.imatrix: missing, expected a text; name one"
    return None


def refuse_quants(target: Target) -> str | None:
    each = (refuse(replace(target, variant=kind)) for kind in target.entry["quants"])
    return next(filter(None, each), None)


def every_type(catalogue: dict, tp: int) -> list[str]:
    return [*FLOATS, *quants.FTYPES]


ROWS = (
    Format(
        name="gguf",
        what="GGUF at the model's dtype, or at the type named",
        steps={
            "safetensors_to_gguf": convert,
            "quantize_gguf": quantize,
            "verify_gguf": read_through(Cost(10, 40.0, 400, 1200)),
        },
        sizes=whole_model,
        whole="a GGUF file holds the whole model, and servers split it themselves",
        variants=every_type,
        refuse=refuse,
        record="the checkpoint, value by value, and key by key; transformers' texts, tokens and "
        "distributions, by libllama",
        chart="gguf",
    ),
    Format(
        name="quants",
        what="GGUF of several of libllama's types, from one read of the checkpoint",
        steps={},
        sizes=whole_model,
        whole="a GGUF file holds the whole model, and servers split it themselves",
        refuse=refuse_quants,
        no_record="each of its files is artifacts/MODEL.TYPE.gguf; ask for that one's record",
        chart="gguf",
    ),
    Format(
        name="split",
        what="a GGUF file as a set of files within a limit, as hubs want it",
        steps={"split_gguf": split, "verify_split": run_through(Cost(3, 40, 200, 1200))},
        sizes=whole_model,
        whole="a GGUF file holds the whole model, and servers split it themselves",
        variants=every_type,
        refuse=refuse,
        record="the whole file, tensor by tensor; its logits, by libllama",
        chart="gguf",
    ),
    Format(
        name="imatrix",
        what="an importance matrix, by which libllama's types are made",
        steps={"compute_imatrix": imatrix},
        sizes=whole_model,
        whole="an importance matrix is of the whole model",
        refuse=refuse_imatrix,
        no_record="the records of the files that are made by it name it",
    ),
)
