"""Rows of ONNX, of what is made like it, OpenVINO IR and torchpipe's file set, and of TensorRT for RTX."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ingot.driver.catalogue.formats import table
from ingot.driver.catalogue.formats.table import (  # fmt: skip
    GB,
    Cost,
    Format,
    Step,
    Target,
    Work,
    whole_model,
)
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import UPSTREAM, Model, maker_of
from ingot.formats.onnx import builder, weights
from ingot.formats.onnx.openvino import exporter
from ingot.formats.onnx.torchpipe import split
from ingot.model import features
from ingot.model.outline import NO_TABLE
from ingot.model.specs import specs_of

VARIANTS = ("fp16", "int8", "prefill")  # besides fp32; prefill is fp16 without a KV cache
QUANTS = ("int8",)  # of OpenVINO
INT4 = "int4"
EXPORTED = (*QUANTS, INT4)  # of OpenVINO, by optimum-intel
PER_LAYER = 12_000  # bytes of a graph
SCRIPTS = {"torchpipe": "split_onnx", "rtx": "build_rtx"}  # of others export_<name>
VALUES = "the checkpoint, value by value; transformers in float32: tokens and distributions, by "


def folder_bytes(name: str, job: Job, model: Model) -> float:
    """Weights, graphs, small files; of torchpipe the embedding lies beside the graphs, twice."""
    settings, config = model.entry["onnx"], model.config
    words = job.wildcards | {"onnx": ".fp16"} if name == "rtx" else job.wildcards
    word, layers = words.get("onnx", words.get("int8", "")).lstrip("."), config.layers
    if name == "torchpipe":
        word = settings["torchpipe"]["dtype"]
        layers = min(layers, settings["torchpipe"].get("layers", layers))
    int8 = "dequantized" if name == "openvino" else settings["int8"]
    dtype = {"": "fp32", "prefill": "fp16"}.get(word, word)
    form = weights.Form(dtype, int8, settings["block"], tuple(settings["float_layers"]))
    size = PER_LAYER * (layers + 1) + model.tokenizer_bytes()
    for spec in specs_of(replace(config, layers=layers), "f32"):
        copies = 2 + config.tied if name == "torchpipe" and spec.source == weights.EMBEDDING else 1
        size += copies * form.nbytes(spec.source or "", spec.shape)
    return size


def make(name: str, cost: Cost) -> dict[str, Step]:
    """The step that makes a format; its unit is a GB of the checkpoint."""

    def work(job: Job, model: Model) -> Work | None:
        if not model.config:
            return None
        files = {job.writes[0]: folder_bytes(name, job, model)}
        return Work(cost, model.checkpoint_bytes() / GB, files)

    return {SCRIPTS.get(name, f"export_{name}"): work}


def build(job: Job, model: Model) -> Work | None:
    """By onnxruntime-genai's builder, in float32; unit: a GB of the checkpoint."""
    if not model.numbers:
        return None
    size = model.tensor_bytes("f32")
    return Work(Cost(6, 6.5, 870, 1000), model.checkpoint_bytes() / GB, {job.writes[0]: size})


def by_builder(target: Target) -> bool:
    """Where it is not our own; other variants than float32 are, where there is a table."""
    tabled = NO_TABLE not in target.entry["needs"]
    return maker_of(target.entry, "onnx") == UPSTREAM and not (target.variant and tabled)


def can(target: Target) -> Collection[str]:
    """The builder's toolchain has no accelerate, without which transformers reads no codes there."""
    built = tuple(word for word in features.ALL if word not in ("mxfp4", "fp8"))
    return built if by_builder(target) else weights.CAN


def why_not(target: Target) -> str | None:
    if not by_builder(target):
        return None
    architecture = target.entry["architecture"]
    if architecture not in builder.ARCHITECTURES:
        return f"onnxruntime-genai's builder, as it is pinned, does not know {architecture}"
    if target.variant:
        return f"no {target.variant} with way upstream: the builder writes float32"
    return None


def by_exporter(target: Target) -> bool:
    """Is it written by optimum-intel, as int4 always is?"""
    return target.variant == INT4 or maker_of(target.entry, "openvino") == UPSTREAM


def of_openvino(target: Target) -> Collection[str]:
    exported = tuple(word for word in features.ALL if word != "fp8")
    return exported if by_exporter(target) else weights.CAN


def not_openvino(target: Target) -> str | None:
    architecture = target.entry["architecture"]
    if not by_exporter(target):
        return None
    if architecture not in exporter.ARCHITECTURES:
        return f"optimum-intel, as it is pinned, does not know {architecture}"
    if target.variant and target.entry["onnx"]["float_layers"]:
        return (
            "optimum-intel, which writes it, leaves no layer in float32; remove onnx.float_layers"
        )
    return None


# of a weight; of int4 the embedding and the head are int8
BITS = {"": 32, "int8": 8.03, "int4": 4.6}


def exported(job: Job, model: Model) -> Work | None:
    """By optimum-intel; unit: a GB of the checkpoint."""
    if not model.numbers:
        return None
    word = job.wildcards.get("openvino", "").lstrip(".")
    cost = Cost(8, 8.5, 610, 1470) if word else Cost(8, 12, 600, 2870)
    size = 4 * model.parameters() * BITS[word] / BITS[""]
    files = {job.writes[0]: size}
    return Work(cost, model.checkpoint_bytes() / GB, files, guessed=word == "int4")


row = partial(Format, can=table.always(weights.CAN), sizes=whole_model, chart="irpa")
ROWS = (
    row(
        name="onnx",
        final=True,
        what="a decoder with KV cache in ONNX, fp32, fp16 or int8",
        can=can,
        why_not=why_not,
        steps=make("onnx", Cost(0.6, 3.0, 60))
        | {"build_onnx": build}
        | dict.fromkeys(
            ("verify_onnx", "verify_built_onnx"),
            table.run_through(Cost(3, 250, 200, 1100), corpus=True),
        ),
        whole="an ONNX graph holds the whole model",
        variants=lambda catalogue, tp: VARIANTS,
        record=VALUES + "ONNX Runtime and onnxruntime-genai",
        copied=True,
    ),
    row(
        name="openvino",
        final=True,
        what="OpenVINO IR, float32, int8 or int4, with its tokenizer",
        can=of_openvino,
        why_not=not_openvino,
        steps=make("openvino", Cost(4, 4.0, 500))
        | {"build_openvino": exported}
        | dict.fromkeys(
            ("verify_openvino", "verify_built_openvino"),
            table.run_through(Cost(10, 700, 900, 4300), corpus=True),
        ),
        whole="an IR holds the whole model",
        variants=lambda catalogue, tp: EXPORTED,
        record=VALUES + "OpenVINO and openvino_genai",
    ),
    row(
        name="torchpipe",
        can=table.always(split.CAN),
        what="the decoder cut at attention: a graph that batches any tokens, and attention per request",
        steps=make("torchpipe", Cost(0.6, 3.0, 60))
        | {"verify_torchpipe": table.run_through(Cost(3, 100, 200, 1300))},
        whole="torchpipe's graphs hold the whole model",
        record="the checkpoint, value by value; transformers in float32: tokens, by ONNX Runtime",
        copied=True,
    ),
    row(
        name="rtx",
        what="a TensorRT for RTX engine (proprietary compiler, optional)",
        steps=make("rtx", Cost(1.5, 4.0, 350, 3000))
        | {"verify_rtx": table.read_through(Cost(2.0, 10.0, 350, 3000))},
        whole="TensorRT for RTX is for one GPU",
        record="a second build, byte by byte, and its graph's own record",
        chart="engine",
    ),
)
