"""Rows of quantised checkpoints in the hub's layout: for vLLM, and for MLX."""

from collections.abc import Collection

from ingot.driver.catalogue.formats import table
from ingot.driver.catalogue.formats.table import GB, Cost, Format, Target, Work, whole_model
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model, planned
from ingot.model import features
from ingot.model.checkpoint.quantised import mlx, sizes, write
from ingot.model.checkpoint.quantised.schemes import ALL, CALIBRATED, SCHEMES
from ingot.model.config import ModelConfig
from ingot.model.families.table import FAMILIES
from ingot.model.outline import NO_TABLE

OWN = tuple(
    word
    for word in (*features.ALL, features.ADAPTER)
    if word not in (NO_TABLE, "sinks", "mxfp4", "fp8", "latent")
)
CALIBRATES = tuple(word for word in features.ALL if word != "fp8")
SMALL = 5000  # bytes of what lies beside the shards and the tokenizer
COST, TWICE = Cost(0.4, 2.0, 80), Cost(0.4, 4.0, 80)  # of one read, of two
COMPRESS, CALIBRATE = Cost(14, 20, 1000, 1300), Cost(25, 1000, 1000, 1300)  # by llm-compressor
BITS = tuple(word for word in mlx.BITS if word)
READ_TWICE = tuple(f".{name}.safetensors" for name, one in SCHEMES.items() if one.of_sets)


def quantised(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint."""
    if not model.config:
        return None
    scheme = job.wildcards.get("scheme", "fp8")
    size = sizes.weights(model.config, scheme, model.entry["dtype"])
    files = {job.writes[0]: size + model.tokenizer_bytes() + SMALL}
    cost = TWICE if SCHEMES[scheme].of_sets else COST
    return Work(cost, model.checkpoint_bytes() / GB, files)


def compressed(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint.  Of a family without a table the bytes are a guess."""
    if not model.numbers:
        return None
    scheme, size = job.wildcards.get("scheme", "fp8"), model.checkpoint_bytes()
    cost = CALIBRATE if scheme in CALIBRATED else COMPRESS
    if model.config:
        found = sizes.weights(model.config, scheme, model.entry["dtype"])
    else:
        found = size * 1.15 * ALL[scheme].weights["num_bits"] / 16
    files = {job.writes[0]: found + model.tokenizer_bytes() + SMALL}
    return Work(cost, size / GB, files, guessed=not model.config)


def can(target: Target) -> Collection[str]:
    """llm-compressor takes what transformers does, and merges no adapter."""
    if target.variant in CALIBRATED:
        return CALIBRATES
    return OWN if NO_TABLE not in target.entry["needs"] else features.ALL


def why_not(target: Target) -> str | None:
    if target.variant is None:
        return f"no scheme, expected one of {', '.join(ALL)}: {target.model}.fp8.safetensors"
    if target.variant in CALIBRATED and not (
        target.entry.get("calibration") or target.entry.get("imatrix")
    ):
        return (
            f"models.{target.model}.calibration: missing, expected a text like those that it will "
            "serve; name one"
        )
    if not target.entry.get("dimensions"):  # once its checkpoint is here, the step says so
        return None
    config = planned(target.entry)
    if not isinstance(config, ModelConfig):
        return None
    return write.undivided(write.linear(config), ALL[target.variant])


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
            "verify_mlx": table.run_through(Cost(8, 1000, 700, 1300)),
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
        what="a quantised checkpoint for vLLM: fp8, fp8_block, w8a8, w4a16, mxfp4 or nvfp4; calibrated on "
        "a text: fp8_static, w8a8_gptq, w4a16_gptq, w4a16_awq or nvfp4_a4",
        can=can,
        why_not=why_not,
        sizes=whole_model,
        whole="a server cuts it into ranks as it loads it",
        variants=lambda catalogue, tp: ALL,
        steps={
            "quantize_safetensors": quantised,
            "compress_safetensors": compressed,
            "verify_safetensors": table.run_through(Cost(8, 200, 1200, 1300), corpus=True),
        },
        varies={
            "compress_safetensors": (
                1,
                "a calibration's sums depend on how many threads share them",
            )
        },
        record="compressed-tensors' own codes of the checkpoint, byte by byte; transformers with that "
        "library: tokens and distributions",
        serve="vllm serve {title}",
        repository=True,
        chart="checkpoint",
    ),
)
