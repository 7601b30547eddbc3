"""What a job needs that this machine has not: said before any work, not after hours of it."""

from ingot import nvidia


def missing(job) -> str | None:
    """Why `job` cannot run here, and what to do; or None."""
    if capability := job.params.get("compute_capability"):
        return nvidia.missing(capability)
    if job.params.get("layout") == "engine" and job.params.get("server") == "nvidia-pytriton":
        return (
            "nvidia-pytriton's server has no backend for engines; set INGOT_TRITONSERVER to the "
            "tritonserver of an image with TensorRT-LLM"
        )
    return None
