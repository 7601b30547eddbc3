"""Rows of serving bundles: folders that a cluster starts as they are."""

import difflib
from collections.abc import Collection
from functools import partial

from ingot.base.refused import Refused
from ingot.driver.catalogue.formats import quantised, table
from ingot.driver.catalogue.formats.table import Cost, Format, Target, Work, own_sizes
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model, planned
from ingot.formats.onnx import weights
from ingot.model import features
from ingot.model.checkpoint.quantised.schemes import ALL
from ingot.model.config import ModelConfig
from ingot.model.features import ADAPTER
from ingot.model.outline import NO_TABLE
from ingot.serving.vllm import plan, registry, schemes

LAUNCH = 90_000  # bytes of a bundle beside its model


def bundle(job: Job, model: Model) -> Work:
    """Weights of the hub are linked, and quantised ones; a local checkpoint's are copied."""
    copied = model.local and not job.wildcards.get("served")
    size = model.tokenizer_bytes() + LAUNCH + (model.checkpoint_bytes() if copied else 0)
    return Work(Cost(0.3, 0.5, 40), size / table.GB, dict.fromkeys(job.writes, size))


def not_quantised(target: Target) -> str | None:
    """Why a target's scheme cannot be served; None too where it has none."""
    scheme, device = target.variant, target.entry["vllm"]["device"]
    if scheme is None:
        return None
    if target.entry["vllm"]["adapters"]:
        return f"models.{target.model}.vllm.adapters: served beside the checkpoint as it is, not {scheme}"
    if reason := quantised.why_not(target):
        return reason
    capability = None
    if device != "cpu":
        capability = target.catalogue["gpus"].get(device, {}).get("compute_capability")
    if reason := schemes.no_kernel(scheme, capability, "experts" in target.entry["needs"]):
        return reason
    dtype = target.entry["vllm"]["dtype"]
    reason = schemes.not_in(dtype, scheme, "cpu" if device == "cpu" else "gpu")
    return f"models.{target.model}.vllm.dtype: {reason}" if reason else None


def why_not(target: Target) -> str | None:
    settings, gpus = target.entry["vllm"], target.catalogue["gpus"]
    architecture = target.entry["architecture"]
    if NO_TABLE in target.entry["needs"] and architecture not in registry.ARCHITECTURES:
        return f"vLLM, as it is pinned, does not serve {architecture}"
    if settings["device"] != "cpu" and settings["device"] not in gpus:
        key = f"models.{target.model}.vllm.device: {settings['device']}"
        return f"{key}, expected cpu or one of {', '.join(gpus)}"
    if target.record and settings["smoke"] == "generated":
        return f"models.{target.model}.vllm.smoke: generated, expected reference: a record compares; set it"
    several = settings.get("nodes", settings.get("pp", 1)) > 1
    if target.record and (several or settings["device"] != "cpu"):
        what = "several nodes" if several else "GPUs"
        return (
            f"a server on {what} is verified by its own job before it is ready; ask for the bundle"
        )
    if wrong := why_not_adapters(target) or not_quantised(target):
        return wrong
    if target.entry.get("dimensions"):  # before a checkpoint is fetched
        config = planned(target.entry)
        if not isinstance(config, ModelConfig):
            return None
        dtype = {"auto": "bfloat16"}.get(settings["dtype"], settings["dtype"])
        own = {**settings, "memory": memory_of(target.entry, gpus)}
        key = f"models.{target.model}.vllm"
        try:
            plan.planned(config, own, target.tp, dtype, key, scheme=target.variant or "")
        except Refused as reason:
            return str(reason)
    return None


def why_not_rayserve(target: Target) -> str | None:
    entry, key = target.entry, f"models.{target.model}"
    apps = entry["ray"]["apps"]
    if (target.variant or entry.get("original")) and apps != ["llm"]:
        return f"{key}.ray.apps: {', '.join(apps)}, expected llm alone for a quantised checkpoint"
    if "acpu" in apps and entry["onnx"]["graph"] != "portable":
        return (
            f"{key}.onnx.graph: {entry['onnx']['graph']}, expected portable: requests share a batch"
        )
    if "llm" in apps:
        return why_not(target)
    if target.tp != 1:
        return f"{key}.ray.apps: {', '.join(apps)}, expected llm in it for a tensor parallel size"
    return None


def why_not_adapters(target: Target) -> str | None:
    """Of the models that are served beside it."""
    key, models = f"models.{target.model}.vllm.adapters", target.catalogue["models"]
    its = [name for name in models if models[name].get(ADAPTER, {}).get("base") == target.model]
    for name in target.entry["vllm"]["adapters"]:
        if name not in its:
            near = difflib.get_close_matches(name, its, 1) or its[:3]
            such = f", such as {', '.join(near)}" if near else ""
            return f"{key}: {name}, expected adapters of {target.model}{such}; name one, or `ingot add` it"
    if target.entry["vllm"]["adapters"] and target.format != "vllm-slurm":
        return f"{key}: served by .vllm-slurm alone"
    return None


def why_not_kuberay(target: Target) -> str | None:
    if "image" not in target.entry["ray"]:
        key = f"models.{target.model}.ray.image"
        return f"{key}: missing, expected name@sha256:..., an image with Ray and what is served; name one"
    return why_not_rayserve(target)


def memory_of(entry: dict, gpus: dict) -> float:
    """GiB of the GPU that a model is served on; 0: a CPU."""
    device = entry["vllm"]["device"]
    return 0 if device == "cpu" else gpus[device].get("memory", 80)


def can(target: Target) -> Collection[str]:
    """What every application of a Ray Serve folder can."""
    apps = target.entry["ray"]["apps"]
    if apps == ["llm"]:
        return served(target)
    return [word for word in weights.CAN if word != features.ADAPTER or "llm" not in apps]


def served(target: Target) -> Collection[str]:
    """What vLLM can: of a quantised checkpoint what its writer can."""
    return quantised.can(target) if target.variant else plan.CAN


row = partial(
    Format,
    can=served,
    variants=lambda catalogue, tp: ALL,
    sizes=own_sizes,
    chart="checkpoint",
    links=True,
    devices="gpus",
    servers=("vllm",),
    as_stored=True,
)
ROWS = (
    row(
        name="vllm-slurm",
        serve="{title}/submit",
        what="a folder that SLURM serves by vLLM: weights, plan, launch files",
        steps={"bundle_vllm": bundle, "verify_vllm": table.run_through(Cost(40, 60, 900, 12000))},
        why_not=why_not,
        record="transformers in float32: greedy tokens and their log-probabilities, through the server",
    ),
    row(
        name="rayserve",
        serve="{title}/serve",
        can=can,
        what="a folder that Ray Serve serves: vLLM, and int8 on Intel's and AMD's CPUs",
        steps={
            "bundle_rayserve": bundle,
            "verify_rayserve": table.run_through(Cost(60, 90, 900, 12000)),
        },
        why_not=why_not_rayserve,
        record="transformers in float32: greedy tokens by each application, streams, batches",
    ),
    row(
        name="kuberay",
        serve="kubectl apply -k {title}",
        can=can,
        what="manifests for KubeRay, and the model that they serve by vLLM",
        steps={"bundle_kuberay": bundle},
        why_not=why_not_kuberay,
        no_record="its manifests are checked while it is built, and its ./smoke asks the cluster",
    ),
)
