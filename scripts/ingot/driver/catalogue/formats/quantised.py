"""Rows of quantised checkpoints in the hub's layout: for vLLM, and for MLX."""

from ingot.driver.catalogue.formats import table
from ingot.driver.catalogue.formats.table import GB, Cost, Format, Target, Work, whole_model
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model, planned
from ingot.model import features
from ingot.model.checkpoint.quantised import mlx, sizes, write
from ingot.model.checkpoint.quantised.schemes import SCHEMES
from ingot.model.config import ModelConfig
from ingot.model.families.table import FAMILIES
from ingot.model.outline import NO_TABLE

CAN = tuple(word for word in (*features.ALL, features.ADAPTER) if word != NO_TABLE)
SMALL = 5000  # bytes of what lies beside the shards and the tokenizer
COST, TWICE = Cost(0.4, 2.0, 80), Cost(0.4, 4.0, 80)  # of one read, of two
BITS = tuple(word for word in mlx.BITS if word)


def quantised(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    scheme = job.wildcards.get("scheme", "fp8")
    size = sizes.weights(model.config, scheme, model.entry["dtype"])
    files = {job.writes[0]: size + model.tokenizer_bytes() + SMALL}
    cost = TWICE if SCHEMES[scheme].of_sets else COST
    return Work(cost, model.checkpoint_bytes() / GB, files)


def why_not(target: Target) -> str | None:
    if target.variant is None:
        return f"no scheme, expected one of {', '.join(SCHEMES)}: {target.model}.fp8.safetensors"
    if not target.entry.get("dimensions"):  # once its checkpoint is here, the step says so
        return None
    config = planned(target.entry)
    if not isinstance(config, ModelConfig):
        return None
    return write.undivided(write.linear(config), SCHEMES[target.variant])


def for_mlx(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    bits = mlx.BITS[job.wildcards.get("bits", "").lstrip(".")]
    held = mlx.tensors(model.config, bits, lambda name: sizes.stored(model.entry["dtype"]))
    size = sum(one.nbytes for one in held) + model.tokenizer_bytes() + SMALL
    return Work(COST, model.checkpoint_bytes() / GB, {job.writes[0]: size})


def not_for_mlx(target: Target) -> str | None:
    family = FAMILIES.get(target.entry["architecture"])
    return mlx.why_not(family) if family else None


ROWS = (
    Format(
        name="mlx",
        final=True,
        what="a checkpoint for MLX on Apple's machines, as it is or in 4 or 8 bits",
        can=table.always(mlx.CAN),
        why_not=not_for_mlx,
        sizes=whole_model,
        whole="a checkpoint for MLX is whole",
        variants=lambda catalogue, tp: BITS,
        steps={
            "quantize_mlx": for_mlx,
            "verify_mlx": table.run_through(Cost(8, 2000, 700, 9000)),
        },
        record="mlx's own codes of the checkpoint, byte by byte; transformers in float32: tokens and "
        "distributions, by mlx-lm",
        serve="mlx_lm.server --model {title}",
        repository=True,
        chart="checkpoint",
    ),
    Format(
        name="safetensors",
        final=True,
        what="a quantised checkpoint for vLLM: fp8, fp8_block, w8a8, w4a16, mxfp4 or nvfp4",
        can=table.always(CAN),
        why_not=why_not,
        sizes=whole_model,
        whole="a server cuts it into ranks as it loads it",
        variants=lambda catalogue, tp: SCHEMES,
        steps={
            "quantize_safetensors": quantised,
            "verify_safetensors": table.run_through(Cost(8, 400, 1200, 8000)),
        },
        record="compressed-tensors' own codes of the checkpoint, byte by byte; transformers with that "
        "library: tokens and distributions",
        serve="vllm serve {title}",
        repository=True,
        chart="checkpoint",
    ),
)
