"""Rows of GGUF: one file, several quantised ones, a set of smaller files, importance matrices."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ingot.driver.catalogue.formats.checkpoint import LORA
from ingot.driver.catalogue.formats.table import (  # fmt: skip
    GB,
    Cost,
    Format,
    Target,
    Work,
    always,
    read_through,
    run_through,
    whole_model,
)
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import UPSTREAM, Model, maker_of
from ingot.formats.gguf import converter, metadata, quantisations
from ingot.formats.gguf import lora as lora_format
from ingot.formats.iree import irpa
from ingot.model import features

# MB of llama.cpp's converter, and bytes that it holds of each value of a tensor
CONVERTER, HELD = 370, 6
FLOATS = ("f32", "f16", "bf16", "q8_0")  # dtypes that the converter writes
MMPROJ = "mmproj.gguf"
EYES = 1_000_000_000  # bytes of it, where nobody knows: Gemma 3's has 850 MB


def file_bytes(model: Model, dtype: str) -> int:
    """The tensors, and 65 bytes per token of the vocabulary: its text and what it is."""
    row = quantisations.ROWS.get(dtype)
    tensors = model.tensor_bytes("f32" if row else dtype)
    tensors *= row.bits / 32 if row else 1
    return irpa.align(int(tensors) + 65 * model.numbers.vocab, irpa.PAGE)


def convert(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.numbers:
        return None
    size, c = file_bytes(model, model.dtype(job.wildcards.get("dtype", ""))), model.config
    memory = 40  # MB; of experts that lie across two as a whole
    if c and c.family.stacks and not c.packed:
        memory += round(2 * 2 * 2 * c.hidden * c.experts.ffn / 1e6)
    return Work(Cost(0.2, 2.0, memory), model.checkpoint_bytes() / GB, {job.writes[0]: size})


def convert_upstream(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint; llama.cpp's converter imports torch, and holds a tensor in float32."""
    if not model.numbers:
        return None
    if job.writes[0].endswith(MMPROJ):  # config.json does not say how much of it that is
        size = min(model.checkpoint_bytes(), EYES)
        return Work(
            Cost(5.0, 1.0, CONVERTER + 300), model.checkpoint_bytes() / GB, {job.writes[0]: size}
        )
    c, size = model.numbers, file_bytes(model, model.dtype(job.wildcards.get("dtype", "")))
    # the embedding, or the experts of a layer, stacked
    largest = max(c.vocab * c.hidden, model.parameters() / c.layers / 3)
    memory = CONVERTER + HELD * largest / 1e6
    return Work(Cost(5.0, 6.0, memory), model.checkpoint_bytes() / GB, {job.writes[0]: size})


def kinds(job: Job, model: Model) -> list[str]:
    """The types that a job writes."""
    one = job.wildcards.get("quant") or job.wildcards.get("gguf", "").lstrip(".")
    return [one] if one else model.entry["quants"]


def quantize(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint to one type."""
    if not model.numbers:
        return None
    asked = kinds(job, model)
    size = sum(file_bytes(model, kind) for kind in asked)
    units = model.checkpoint_bytes() / GB * len(asked)
    return Work(Cost(0.5, 25.0, 80), units, {job.writes[0]: size})


def split(job: Job, model: Model) -> Work | None:
    """Unit: a GB copied."""
    if not model.numbers:
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


def why_not(target: Target) -> str | None:
    architecture, key = target.entry["architecture"], f"models.{target.model}.imatrix"
    upstream = maker_of(target.entry, "gguf") == UPSTREAM
    row, text = quantisations.ROWS.get(target.variant or ""), target.entry.get("imatrix")
    if upstream and architecture not in converter.ARCHITECTURES:
        return f"llama.cpp's converter, as it is pinned, does not know {architecture}"
    if upstream and text:
        return f"{key}: set, expected none with way upstream: it would lack experts and states"
    if row and "mxfp4" in target.entry["needs"]:
        return quantisations.PACKED
    experts = "experts" in target.entry["needs"]
    if row and text and experts:
        return f"{key}: set, expected none of a model with experts; remove it"
    if row and row.by_imatrix and not text:
        needs = f"{target.variant} needs an importance matrix"
        if upstream or experts:
            lacks = "with way upstream" if upstream else "of a model with experts"
            return f"{needs}, which there is none of {lacks}"
        return f"{needs}; set {key} to a text"
    return None


def why_not_mmproj(target: Target) -> str | None:
    architecture = target.entry["architecture"]
    if architecture not in converter.PROJECTORS:
        return f"{architecture} has no part for images or sounds that llama.cpp's converter writes"
    return None


def lora(job: Job, model: Model) -> Work:
    """Unit: a GB of the adapter, which is a hundredth of its base or less."""
    return Work(Cost(0.2, 2, 60), LORA / GB, dict.fromkeys(job.writes, LORA), guessed=True)


def why_not_lora(target: Target) -> str | None:
    if features.ADAPTER in target.entry["needs"]:
        return None
    return f"models.{target.model}.adapter: missing: it is no adapter; `ingot add` one"


def why_not_imatrix(target: Target) -> str | None:
    if maker_of(target.entry, "gguf") == UPSTREAM:
        return (
            "no importance matrix is computed with way upstream: it would lack experts and states"
        )
    if not target.entry.get("imatrix"):
        return f"models.{target.model}.imatrix: missing, expected a text; name one"
    return None


def can_imatrix(target: Target) -> Collection[str]:
    """Of experts libllama's sums are not those that it quantises by, expert by expert."""
    return (*(one for one in metadata.CAN if one != "experts"), features.ADAPTER)


def why_not_quants(target: Target) -> str | None:
    each = (why_not(replace(target, variant=kind)) for kind in target.entry["quants"])
    return next(filter(None, each), None)


def can(target: Target) -> Collection[str]:
    """What our own table lacks is llama.cpp's to write; an adapter our own merges, into floats alone."""
    merges = maker_of(target.entry, "gguf") != UPSTREAM and "fp8" not in target.entry["needs"]
    return (*features.ALL, *([features.ADAPTER] if merges else []))


def can_lora(target: Target) -> Collection[str]:
    return [word for word in can(target) if word not in lora_format.CANNOT]


def every_type(catalogue: dict, tp: int) -> list[str]:
    return [*FLOATS, *quantisations.ROWS]


row = partial(
    Format,
    can=can,
    sizes=whole_model,
    whole="a GGUF file holds the whole model, and servers split it themselves",
    chart="gguf",
)
ROWS = (
    row(
        name="gguf",
        final=True,
        serve="llama-server -m {title}",
        what="GGUF at the model's dtype, or at the type named",
        steps={
            "safetensors_to_gguf": convert,
            "convert_gguf": convert_upstream,
            "quantize_gguf": quantize,
            "quantize_float": quantize,
            "verify_gguf": read_through(Cost(10, 40.0, 400, 1200)),
            "verify_converted": run_through(Cost(10, 60, 400, 1250), corpus=True),
        },
        variants=every_type,
        why_not=why_not,
        record="the checkpoint, value by value, and key by key; transformers' texts, tokens and "
        "distributions, by libllama",
    ),
    row(
        name=MMPROJ,
        final=True,
        serve="llama-server -m MODEL.gguf --mmproj {title}",
        what="the part of a model for images, which llama.cpp takes beside its GGUF",
        steps={"verify_mmproj": run_through(Cost(15, 20, 2000, 1400))},
        can=always(features.ALL),
        why_not=why_not_mmproj,
        record="transformers' answer about a picture, by llama.cpp's library for images",
    ),
    row(
        name="lora.gguf",
        final=True,
        serve="llama-server -m BASE.gguf --lora {title}",
        what="an adapter that llama.cpp applies to its base's GGUF file",
        steps={
            "lora_to_gguf": lora,
            "verify_lora": run_through(Cost(10, 40, 400, 1200), corpus=True),
        },
        can=can_lora,
        why_not=why_not_lora,
        record="the adapter, value by value; transformers with what PEFT merges, by libllama",
    ),
    row(
        name="seen.npz",
        what="what llama.cpp sees in a picture, by an mmproj file",
        steps={"see_images": run_through(Cost(10, 20, 1000, 1250), 1e7)},
        intermediate=True,
    ),
    row(
        name="quants",
        what="GGUF of several of libllama's types, from one read of the checkpoint",
        steps={},
        why_not=why_not_quants,
        no_record="each of its files is artifacts/MODEL.TYPE.gguf; ask for that one's record",
    ),
    row(
        name="split",
        serve="llama-server -m {title}/*-00001-of-*.gguf",
        what="a GGUF file as a set of files within a limit, as hubs want it",
        steps={"split_gguf": split, "verify_split": run_through(Cost(3, 40, 200, 1200))},
        variants=every_type,
        why_not=why_not,
        record="the whole file, tensor by tensor; its logits, by libllama",
    ),
    row(
        name="imatrix",
        what="an importance matrix, by which libllama's types are made",
        steps={"compute_imatrix": imatrix},
        can=can_imatrix,
        whole="an importance matrix is of the whole model",
        chart="other",
        why_not=why_not_imatrix,
        no_record="the records of the files that are made by it name it",
    ),
)
