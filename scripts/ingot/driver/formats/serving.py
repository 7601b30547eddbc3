"""Rows of serving bundles: folders that a cluster starts as they are."""

from ingot.driver.formats import table
from ingot.driver.formats.table import Cost, Format, Target, Work, own_sizes
from ingot.driver.job import Job
from ingot.driver.known.model import Model

LAUNCH = 90_000  # bytes of a bundle beside its model


def bundle(job: Job, model: Model) -> Work:
    """Weights of the hub are linked; a local checkpoint's are copied."""
    size = model.tokenizer_bytes() + LAUNCH + (model.checkpoint_bytes() if model.local else 0)
    return Work(Cost(0.3, 0.5, 40), size / table.GB, dict.fromkeys(job.writes, size))


def refuse(target: Target) -> str | None:
    settings, gpus = target.entry["vllm"], target.catalogue["gpus"]
    if settings["device"] != "cpu" and settings["device"] not in gpus:
        key = f"models.{target.model}.vllm.device: {settings['device']}"
        return f"{key}, expected cpu or one of {', '.join(gpus)}"
    if target.record and settings.get("nodes", settings.get("pp", 1)) > 1:
        return "a server of several nodes is verified by its own job; use its ./smoke"
    return None


def gpu_per_rank(entry: dict, tp: int) -> int:
    return 0 if entry["vllm"]["device"] == "cpu" else tp * entry["vllm"].get("pp", 1)


ROWS = (
    Format(
        name="vllm-slurm",
        what="a folder that SLURM serves by vLLM: weights, plan, launch files",
        steps={"bundle_vllm": bundle, "verify_vllm": table.run_through(Cost(40, 60, 900, 12000))},
        sizes=own_sizes,
        refuse=refuse,
        record="transformers in float32: greedy tokens and their log-probabilities, through the server",
        chart="checkpoint",
        links=True,
        gpus={"verify_vllm": gpu_per_rank},
        devices="gpus",
        servers=("vllm",),
    ),
)
