"""What `ingot stream` can build from one read of a hub model's shards, and the disk that it takes."""

from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.catalogue.formats.quantised import READ_TWICE

WINDOW = 128_000_000  # bytes of pieces that are on the disk at once, unless told otherwise
STEPS = (  # that go through a checkpoint in passes: Rows.passes, in_turn
    "safetensors_to_gguf", "quantize_gguf", "shard_irpa", "safetensors_to_trtllm", "export_onnx",
    "quantize_safetensors", "quantize_mlx", "digest_weights",
)  # fmt: skip

Job = dict[str, Any]  # as a dry run tells of it


def shards(jobs: list[Job]) -> set[str]:
    """The files of weights that would have to be fetched.  Refused: those of two checkpoints."""
    found = {
        path
        for job in jobs
        for path in job["outputs"]
        if job["rule"] == "fetch_file" and job["action"] == "run"
        if path.endswith(".safetensors") and not Path(path).name.startswith("adapter_")
    }
    folders = sorted({str(Path(path).parent) for path in found})
    if len(folders) > 1:
        raise Refused(
            f"{folders[1]}: a second checkpoint, expected one; stream one after the other"
        )
    return found


def reads(jobs: list[Job], coming: set[str]) -> list[list[Job]]:
    """The jobs of each read of the shards: one that needs what another writes is of a later read.

    Refused: a job that wants the whole checkpoint at once, or twice.
    """
    jobs = [job for job in jobs if job["action"] == "run"]
    left, found = [job for job in jobs if coming & {*job["inputs"]}], []
    for job in left:
        path = job["outputs"][0]
        if job["step"] not in STEPS or path.endswith(READ_TWICE):
            raise Refused(
                f"{path}: {job['step']} reads the whole checkpoint at once, expected what is written from "
                "each piece as it comes; leave it out, and ask snakemake for it"
            )
    while left:
        written = {path for job in left for path in job["outputs"]}
        found.append([job for job in left if not way_to(job["inputs"], jobs) & written])
        left = [job for job in left if job not in found[-1]]
    return found


def way_to(paths: list[str], jobs: list[Job]) -> set[str]:
    """The paths, and every one that is made on the way to them."""
    makers = {path: job for job in jobs for path in job["outputs"]}
    found = [*paths]
    for one in found:  # grows while it is walked
        found += [more for more in makers.get(one, {}).get("inputs", ()) if more not in found]
    return {*found}


def forecast(jobs: list[Job]) -> dict[str, int | None]:
    """Of the jobs where they are streamed: `disk`, the most bytes of it, and `reads` of the shards.

    None of both where they cannot be, or need not.
    """
    try:
        coming = shards(jobs)
        count = len(reads(jobs, coming))
    except Refused:
        count = 0
    if not count:
        return {"disk": None, "reads": None}
    sizes: dict[str, int] = {}
    for job in jobs:
        sizes |= (job.get("forecast") or {}).get("files", {}) if job["action"] == "run" else {}
    largest = max(sizes.get(path, 0) for path in coming)  # a piece is a part of a shard
    files = sum(size for path, size in sizes.items() if path not in coming)
    return {"disk": files + WINDOW + largest, "reads": count}
