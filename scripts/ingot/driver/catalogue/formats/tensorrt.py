"""Rows of TensorRT-LLM and Triton."""

from collections.abc import Collection
from functools import partial

from ingot.driver.catalogue.formats import quantised, table
from ingot.driver.catalogue.formats.table import GB, SIZES, Cost, Format, Target, Work
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model, planned
from ingot.formats.onnx import weights
from ingot.formats.tensorrt import trtllm
from ingot.model import features
from ingot.model.config import ModelConfig
from ingot.model.families.table import FAMILIES
from ingot.serving.vllm.schemes import cut_group

FLOATS = ("f16", "bf16", "f32")  # dtypes of a TensorRT-LLM checkpoint
QUANTS = ("fp8", "int4_awq", "int8_sq")  # and what ModelOpt quantises it to
# schemes of M.SCHEME.safetensors that the LLM API serves, and from which compute capability on; by
# TensorRT-LLM's models/quant_config_utils.py, which takes INT8 by rows for FP8, and stops at the others
SERVED = {"fp8": (8, 9), "fp8_block": (8, 9), "nvfp4_a4": (10, 0)}
QUANT_SHARE = {"": 1.0, "int4_awq": 0.3}  # of float16's bytes; of the other quants, SHARE
SHARE = 0.55
TEMPLATES = 70_000  # bytes of a Triton repository beside its engine and tokenizers
CONVERT = Cost(0.2, 2.0, 45)
QUANTIZE = Cost(10.0, 30.0, 600, 2700)
BUILD = Cost(60.0, 30.0, 16000, 2500)  # nobody has measured one: a guess


def checkpoint_size(job: Job, model: Model) -> float:
    """Bytes of all ranks; 0 where it cannot be cut so: the step says why."""
    words = job.wildcards
    mapping = mapping_of(model.entry, int(words["tp"]))
    if trtllm.why_not(model.config, mapping):
        return 0
    quant = words.get("quantised") or words.get("quant", "").lstrip(".")
    dtype = trtllm.DTYPES[model.dtype(words.get("float", ""))]
    cuts, size = trtllm.cuts(model.config, mapping), 0
    for stage in range(mapping.pp):  # whose ranks are alike
        tensors = trtllm.shapes(trtllm.of_stage(cuts, stage))
        size += mapping.tp * trtllm.file_layout(tensors, dtype).size
    return size * QUANT_SHARE.get(quant, SHARE)


def make(cost: Cost):
    """A step whose unit is a GB of the model's checkpoint."""

    def work(job: Job, model: Model) -> Work | None:
        if not model.config:
            return None
        files = {job.writes[0]: checkpoint_size(job, model)}
        return Work(cost, model.checkpoint_bytes() / GB, files)

    return work


def verify(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint; a quantised one is run too."""
    run_too = job.wildcards.get("variant", "").lstrip(".") in QUANTS
    cost = Cost(8, 60.0, 900, 3000) if run_too else Cost(0.3, 1.5, 45)
    return table.read_through(cost)(job, model)


def assemble(job: Job, model: Model) -> Work | None:
    """Two tokenizers beside the engine, or the checkpoint: linked, but for a local one's copy."""
    size = 2 * model.tokenizer_bytes() + TEMPLATES
    quant = job.wildcards.get("quant")
    if model.entry["trtllm"]["backend"] == "llmapi" and model.local and not quant:
        size += model.checkpoint_bytes()
    return Work(Cost(0.2), 0, dict.fromkeys(job.writes, size))


def why_not(target: Target) -> str | None:
    entry, gpus, words = target.entry, target.catalogue["gpus"], (target.variant or "").split(".")
    settings = entry["trtllm"]
    quant = next((word for word in words if word in QUANTS), None)
    gpu = next((word for word in words if word in gpus), settings["gpu"])
    backend = settings["backend"]
    if backend == "onnx" and target.format == "triton" and not target.variant:
        if settings["pp"] != 1:
            return f"backend onnx has no stages; set models.{target.model}.trtllm.pp to 1"
        ask = f"ask for artifacts/{target.model}_tp1.triton"
        return None if target.tp == 1 else f"backend onnx has no ranks; {ask}"
    family = FAMILIES.get(entry["architecture"])
    if family and (reason := trtllm.no_class(family) or _uncut(target)):
        return reason
    if backend == "llmapi" and target.format == "triton" and words[0] in SERVED:
        return not_served(target)
    if entry["dtype"] not in FLOATS:
        legal = ", ".join(FLOATS)
        return f"TensorRT-LLM takes {legal}, and the model's dtype is {entry['dtype']}"
    if quant and "experts" in entry["needs"]:
        return trtllm.UNQUANTISED
    checkpoint = target.format == "trtllm-ckpt"
    if scheme := next((word for word in words if word in SERVED and word not in QUANTS), None):
        key = f"models.{target.model}.trtllm.backend"
        return f"{scheme} is served by the LLM API alone; set {key} to llmapi"
    if not checkpoint and backend != "engine" and (target.variant or target.format == "trtllm"):
        return (
            f"the model's backend is {backend}, which has no engine; set trtllm.backend to engine"
        )
    if quant and entry["dtype"] == "f32":
        return "a quantised checkpoint is f16 or bf16 besides, and the model's dtype is f32"
    if quant and settings["embedding"] != "rows":
        return "ModelOpt splits the embedding by rows only; set trtllm.embedding to rows"
    if quant and not (settings.get("calibration") or entry.get("prompts")):
        return (
            f"models.{target.model}.trtllm.calibration: missing, expected a file of texts to "
            "calibrate on, one per line; name one"
        )
    major, minor = map(int, gpus[gpu]["compute_capability"].split("."))
    if checkpoint:
        return None
    if quant == "fp8" and (major, minor) < (8, 9):
        return f"{gpu} has no FP8: it begins with compute capability 8.9"
    if quant in ("int4_awq", "int8_sq") and major == 10:
        return f"TensorRT-LLM builds no {quant} engine for {gpu}"
    return None


def _uncut(target: Target) -> str | None:
    """Why the model cannot be cut into so many ranks and stages, where the catalogue tells; or None."""
    config = _said(target)
    return trtllm.why_not(config, mapping_of(target.entry, target.tp or 1)) if config else None


def _said(target: Target) -> ModelConfig | None:
    """The model's numbers, where the catalogue has all of them."""
    found = planned(target.entry) if target.entry.get("dimensions") else None
    return found if isinstance(found, ModelConfig) else None


def mapping_of(entry: dict, tp: int) -> trtllm.Mapping:
    return trtllm.Mapping(tp, entry["trtllm"]["pp"], entry["trtllm"]["embedding"])


def not_served(target: Target) -> str | None:
    """Why the LLM API cannot serve a quantised checkpoint, or None."""
    scheme, gpu = target.variant or "", target.entry["trtllm"]["gpu"]
    if target.entry["dtype"] == "f32":
        return "a quantised checkpoint is f16 or bf16 besides, and the model's dtype is f32"
    if scheme == "fp8" and "experts" in target.entry["needs"]:
        return "TensorRT-LLM has no kernel for experts of fp8, whose scales are of rows; take fp8_block"
    said = target.catalogue["gpus"][gpu]["compute_capability"]
    if tuple(map(int, said.split("."))) < SERVED[scheme]:
        least = ".".join(map(str, SERVED[scheme]))
        return (
            f"TensorRT-LLM serves {scheme} from compute capability {least} on, and {gpu} has {said}"
        )
    config = _said(target)
    if config and (reason := cut_group(config, scheme, target.tp or 1)):
        return reason
    return quantised.why_not(target)


def engine_variants(catalogue: dict, tp: int) -> list[str]:
    pairs = [f"{quant}.{gpu}" for quant in QUANTS for gpu in catalogue["gpus"]]
    return [*QUANTS, *catalogue["gpus"], *pairs]


def gpu_per_rank(entry: dict, tp: int) -> int:
    return 0 if entry["trtllm"].get("backend") == "onnx" else tp * entry["trtllm"]["pp"]


def can(target: Target) -> Collection[str]:
    """ModelOpt, which quantises, is given the base's folder."""
    by_modelopt = {*QUANTS} & {*(target.variant or "").split(".")}
    return trtllm.CAN if by_modelopt else (*trtllm.CAN, features.ADAPTER)


def can_triton(target: Target) -> Collection[str]:
    backend = target.entry["trtllm"]["backend"]
    if backend == "onnx" and not target.variant:
        return weights.CAN
    if backend == "llmapi":
        more = (
            [features.ADAPTER]
            if target.variant and features.ADAPTER in quantised.can(target)
            else []
        )
        return (*trtllm.CAN, *more)
    return can(target)


row = partial(
    Format,
    can=can,
    sizes=lambda entry: SIZES,
    why_not=why_not,
    chart="engine",
    devices="gpus",
    servers=("tensorrt-llm",),
)
ROWS = (
    row(
        name="trtllm-ckpt",
        what="a TensorRT-LLM checkpoint, quantised where a variant says so",
        steps={
            "safetensors_to_trtllm": make(CONVERT),
            "quantize_trtllm": make(QUANTIZE),
            "verify_trtllm": verify,
        },
        variants=lambda catalogue, tp: [*FLOATS, *QUANTS],
        record="the checkpoint, each tensor by SHA-256, the ranks merged",
    ),
    row(
        name="trtllm",
        final=True,
        what="a TensorRT-LLM engine, built on a GPU",
        steps={"build_engine": make(BUILD)},
        variants=engine_variants,
        no_record="an engine is verified by serving it; ask for the .triton's record",
        gpus={
            "build_engine": lambda entry, tp: 1
        },  # one rank after another; --set-resources gives more
        varies={"build_engine": (1, "TensorRT chooses kernels by timing them")},
    ),
    row(
        name="triton",
        final=True,
        serve="{title}/serve",
        can=can_triton,
        what="a Triton model repository, and its launch script",
        steps={"assemble_triton": assemble, "verify_triton": table.run_through(Cost(10, 10, 120))},
        variants=lambda catalogue, tp: list(
            dict.fromkeys([*engine_variants(catalogue, tp), *SERVED])
        ),
        record="transformers in float32: greedy tokens, through the server",
        links=True,
        gpus={"verify_triton": gpu_per_rank},
    ),
)
