"""What a job needs that this machine does not have: said before any work, not after hours of it."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.catalogue.job import Job
from ingot.formats.tensorrt import gpus
from ingot.formats.tensorrt.triton.schema import ENGINE_BACKEND

BUNDLED = "nvidia-pytriton"  # the server that comes with envs/triton; it has no GPU


GPUS = ("kfd", "nvidia[0-9]*", "dxg")  # devices of AMD's driver, of NVIDIA's, of both in WSL


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has a GPU that some hardware of the catalogue could be."""
    return any(any(devices.glob(name)) for name in GPUS)


def why_not(job: Job) -> str | None:
    """Why `job` cannot run here, and what to do; or None."""
    if capability := job.params.get("compute_capability"):
        return gpus.why_not(capability)
    if job.params.get("backend") == "engine" and job.params.get("server") == BUNDLED:
        return (
            "nvidia-pytriton's server has no backend for engines; set INGOT_TRITONSERVER to the "
            "tritonserver of an image with TensorRT-LLM"
        )
    return None


def stop_where_it_cannot_run(jobs: Iterable[Job], dry: bool) -> None:
    """Refuse a job that this machine cannot run; a dry run, which may be about another, says so."""
    for job in jobs:
        if reason := why_not(job):
            if not dry:
                raise Refused(f"{job.writes[0]}: {reason}")
            print(f"not here      {job.writes[0]}: {reason}", file=sys.stderr)


def triton_server() -> str:
    """Which server verifies, and which backend for engines: by content, or by path if not here."""
    program, backends = (os.environ.get(f"INGOT_TRITON{name}") for name in ("SERVER", "_BACKENDS"))
    if not program and not backends:
        return BUNDLED
    folder = Path(backends) if backends else Path(program).parent.parent / "backends"
    parts = [Path(program)] if program else []
    parts.append(folder / ENGINE_BACKEND)
    return " ".join(digest.of(part) if part.exists() else str(part) for part in parts)
