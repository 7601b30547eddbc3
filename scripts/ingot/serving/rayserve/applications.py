"""Ray Serve's applications of a model, as guide 001 has them: /, /cpu and /acpu, by the catalogue."""

from typing import Any

from ingot.base import yaml_text
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.arguments import KNOWN
from ingot.serving.vllm.plan import Plan

LLM = "llm"
ENGINES = {"cpu": "openvino", "acpu": "onnx"}  # Intel's CPUs, and AMD's: folders of a bundle, too
RANK_ARGUMENTS = ("distributed-executor-backend", "served-model-name")  # Ray Serve's own business
HEALTH_SECONDS = 60
INGRESS = 1  # a CPU of Ray's, for what takes requests; each replica of vLLM has one, too


def applications(
    model: str,
    plan: Plan | None,
    settings: dict[str, Any],
    ray: dict[str, Any],
    source: str,
    sizes: dict[str, int],
) -> list[dict[str, Any]]:
    """`source`: the model's folder, for vLLM; `sizes`: vocabulary and context, of config.json."""
    found = []
    for name in ray["apps"]:
        if name == LLM:
            found.append(language_model(model, plan, settings, ray, source))
        else:
            found.append(on_cpus(model, name, ray[name], sizes))
    return found


def language_model(
    model: str, plan: Plan, settings: dict[str, Any], ray: dict[str, Any], source: str
) -> dict[str, Any]:
    """An OpenAI server of vLLM's."""
    llm: dict[str, Any] = {
        "model_loading_config": {"model_id": model, "model_source": source},
        "engine_kwargs": keywords(plan_of.arguments(plan, model, settings)),
        "deployment_config": {
            "num_replicas": ray["replicas"],
            "max_ongoing_requests": ray["max_ongoing_requests"],
            "health_check_timeout_s": HEALTH_SECONDS,
        },
    }
    if plan.device == "cpu":
        llm["accelerator_config"] = {"kind": "cpu"}
    elif "accelerator" in ray:
        llm["accelerator_type"] = ray["accelerator"]
    return {
        "name": model,
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [llm]},
    }


def on_cpus(model: str, name: str, own: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """Ours (runtime/rayserve/inference.py), over int8."""
    args = {
        "model": model,
        "engine": ENGINES[name],
        "longest": sizes[ENGINES[name]],
        "vocabulary": sizes["vocabulary"],
    }
    args |= {key: own[key] for key in ("batch_size", "max_new_tokens", "temperature")}
    if own.get("properties"):
        args["properties"] = own["properties"]
    actor = {"num_cpus": own["num_cpus"]}
    if own["resources"]:
        actor["resources"] = own["resources"]
    return {
        "name": f"{model}-{name}",
        "route_prefix": f"/{name}",
        "import_path": "inference:app",
        "args": args,
        "deployments": [
            {
                "name": "Model",
                "num_replicas": own["num_replicas"],
                "max_ongoing_requests": own.get("max_ongoing_requests", 4 * own["batch_size"]),
                "health_check_timeout_s": HEALTH_SECONDS,
                "ray_actor_options": actor,
            }
        ],
    }  # fmt: skip


def asks(plan: Plan | None, ray: dict[str, Any]) -> dict[str, float]:
    """What all replicas take together of CPUs, GPUs and custom resources."""
    found: dict[str, float] = {"CPU": 0}
    for name in ray["apps"]:
        if name == LLM:
            ranks = plan.tp * plan.pp * ray["replicas"]
            found["CPU"] += INGRESS + ray["replicas"]
            kind = "CPU" if plan.device == "cpu" else "GPU"
            found[kind] = found.get(kind, 0) + ranks
            continue
        own = ray[name]
        for kind, one in {"CPU": own["num_cpus"], **own["resources"]}.items():
            found[kind] = found.get(kind, 0) + one * own["num_replicas"]
    return found


def keywords(words: list[str]) -> dict[str, Any]:
    """Arguments of a command line as those of a call: `--dtype float32 --enforce-eager`."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            plain = name if name in KNOWN else name.removeprefix("no-")
            found[plain] = yaml_text.value(value) if value else plain == name
        else:
            found[name] = yaml_text.value(word)
    return {
        name.replace("-", "_"): one for name, one in found.items() if name not in RANK_ARGUMENTS
    }
