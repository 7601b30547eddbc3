"""Ray Serve's configuration, as a RayService holds it: every field is Ray's, every dead one is named.

Ray's own schema takes any field that it does not know, and LLMConfig any argument of the engine.
Source of the tables: ray 2.60.0, ray/serve/schema.py and LLMConfig.
"""

import re
from collections.abc import Iterator
from typing import Any

from ingot.serving.rayserve.fields import Fault, walk
from ingot.serving.vllm.arguments import KNOWN

FORMS: dict[str, dict[str, Any]] = {
    "config": {
        "proxy_location": "Disabled|HeadOnly|EveryNode", "http_options": "http", "grpc_options": "grpc",
        "controller_options": "any", "logging_config": "logging", "tracing_config": "any",
        "applications*": ["application"], "target_capacity": "number",
    },
    "http": {
        "host": "string", "port": "integer", "root_path": "string", "request_timeout_s": "number",
        "keep_alive_timeout_s": "integer", "ssl_keyfile": "string", "ssl_certfile": "string",
        "ssl_keyfile_password": "string", "ssl_ca_certs": "string",
    },
    "grpc": {
        "port": "integer", "grpc_servicer_functions": ["string"], "request_timeout_s": "number",
        "enable_reflection": "boolean",
    },
    "logging": {
        "encoding": "string", "log_level": "any", "logs_dir": "string", "enable_access_log": "boolean",
        "additional_log_standard_attrs": ["string"],
    },
    "application": {
        "name": "string", "route_prefix": "string", "import_path*": "string", "runtime_env": "any",
        "host": "string", "port": "integer", "deployments": ["deployment"], "autoscaling_policy": "any",
        "args": {"": "any"}, "logging_config": "logging", "external_scaler_enabled": "boolean",
    },
    "deployment": {
        "name*": "string", "num_replicas": "int-or-string", "max_ongoing_requests": "integer",
        "max_queued_requests": "integer", "backpressure_config": "any", "user_config": "any",
        "autoscaling_config": "autoscaling", "graceful_shutdown_wait_loop_s": "number",
        "graceful_shutdown_timeout_s": "number", "health_check_period_s": "number",
        "health_check_timeout_s": "number", "ray_actor_options": "actor",
        "placement_group_bundles": [{"": "number"}], "placement_group_strategy": "string",
        "placement_group_bundle_label_selector": "any", "max_replicas_per_node": "integer",
        "logging_config": "logging", "request_router_config": "any", "gang_scheduling_config": "any",
        "deployment_actors": "any", "rolling_update_percentage": "number", "max_surge_percent": "integer",
    },
    "autoscaling": {
        "min_replicas": "integer", "initial_replicas": "integer", "max_replicas": "integer",
        "target_ongoing_requests": "number", "metrics_interval_s": "number",
        "look_back_period_s": "number", "smoothing_factor": "number", "upscaling_factor": "number",
        "upscale_smoothing_factor": "number", "downscale_smoothing_factor": "number",
        "downscaling_factor": "number", "downscale_delay_s": "number", "upscale_delay_s": "number",
        "downscale_to_zero_delay_s": "number", "aggregation_function": "string", "policy": "any",
    },
    "actor": {
        "runtime_env": "any", "num_cpus": "number", "num_gpus": "number", "memory": "number",
        "resources": {"": "number"}, "accelerator_type": "string", "label_selector": {"": "string"},
        "fallback_strategy": "any",
    },
    "llm": {
        "runtime_env": "any", "model_loading_config*": "loading", "llm_engine": "string",
        "engine_kwargs": {"": "any"}, "accelerator_type": "string", "accelerator_config": {"": "any"},
        "placement_group_config": "any", "lora_config": "any", "deployment_config": "llm deployment",
        "server_cls": "any", "experimental_configs": "any", "log_engine_metrics": "boolean",
        "callback_config": "any",
    },
    "loading": {"model_id*": "string", "model_source": "any", "tokenizer_source": "string"},
}  # fmt: skip
FORMS["llm deployment"] = {name.rstrip("*"): form for name, form in FORMS["deployment"].items()}
LLM = ("ray.serve.llm:build_openai_app", "ray.serve.llm:build_llm_deployment")
DEAD = {  # spellings that no Ray of today reads, and what became of them
    "max_concurrent_queries": "max_ongoing_requests",
    "target_num_ongoing_requests_per_replica": "target_ongoing_requests",
    "batch_timeout": "batch_wait_timeout_s of @serve.batch",
    "max_new_token": "max_new_tokens",
}
SECRET_ENV = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY)$")
SECRETS = ("hf_token", "token", "api_key", "password")
MISPLACED = (
    "num_cpus",
    "num_gpus",
    "resources",
    "memory",
    "accelerator_type",
)  # of ray_actor_options


def faults(config: Any, engine: bool = False) -> Iterator[Fault]:
    """One per fault; `engine`: also those of vLLM's arguments, for a version that we pin."""
    found = list(walk(config, "config", "serveConfigV2", FORMS))
    for fault in found:
        if not re.search(r"ray_actor_options\.\w+$", fault.path) or fault.shape:
            yield _explained(fault)
    if any(fault.shape for fault in found) or not config:
        return
    for number, one in enumerate(config["applications"]):
        path = f"serveConfigV2.applications[{number}]"
        yield from _actors(one, path)
        yield from _arguments(one, path)
        if one["import_path"] in LLM and not isinstance(
            (one.get("args") or {}).get("llm_configs"), list
        ):
            yield Fault(f"{path}.args.llm_configs", "missing, expected a list of models; write it")
        for count, llm in enumerate(llms(one)):
            yield from _llm(llm, f"{path}.args.llm_configs[{count}]", engine)


def llms(application: dict) -> list:
    """What a Ray Serve LLM application serves; empty of another."""
    found = application.get("args")
    if application.get("import_path") not in LLM or not isinstance(found, dict):
        return []
    listed = found.get("llm_configs")
    listed = listed if isinstance(listed, list) else []
    return [one for one in listed if not isinstance(one, str)]  # else a file's name


def _explained(fault: Fault) -> Fault:
    name = fault.path.rpartition(".")[2]
    if name in DEAD:
        return Fault(fault.path, f"unknown, and has no effect: it is {DEAD[name]} today; rename it")
    if name in MISPLACED and "unknown" in fault.what:
        return Fault(
            fault.path, "unknown, and has no effect: it belongs under ray_actor_options; indent it"
        )
    return fault


def _actors(application: dict, path: str) -> Iterator[Fault]:
    for number, one in enumerate(application.get("deployments") or []):
        where = f"{path}.deployments[{number}].ray_actor_options"
        for name, value in (one.get("ray_actor_options") or {}).items():
            if name not in FORMS["actor"]:
                own = f"write resources: {{{name}: {value}}}"
                yield Fault(f"{where}.{name}", f"has no effect, expected a custom resource; {own}")


def _arguments(found: Any, path: str) -> Iterator[Fault]:
    """Of an application's own: secrets in plain text, and spellings that nothing reads."""
    if isinstance(found, dict):
        for name, value in found.items():
            own = f"{path}.{name}"
            secret = name in SECRETS or SECRET_ENV.search(str(name))
            if secret and isinstance(value, str) and value:
                yield Fault(own, "a secret in plain text, expected a secretKeyRef in env; move it")
            elif name in DEAD and ".args" in path:
                yield Fault(own, f"unknown, and has no effect: it is {DEAD[name]} today; rename it")
            yield from _arguments(value, own)
    elif isinstance(found, list):
        for number, one in enumerate(found):
            yield from _arguments(one, f"{path}[{number}]")


def _llm(found: Any, path: str, engine: bool) -> Iterator[Fault]:
    if found is None:
        yield Fault(path, "null, expected a model", shape=True)
    yield from walk(found, "llm", path, FORMS)
    arguments = found.get("engine_kwargs") if isinstance(found, dict) else None
    if not isinstance(arguments, dict):
        return
    for name, value in arguments.items():
        if name.endswith("_parallel_size") and not (isinstance(value, int) and value > 0):
            yield Fault(
                f"{path}.engine_kwargs.{name}", f"{value!r}, expected a number of ranks", shape=True
            )
        if engine and name.replace("_", "-") not in KNOWN:
            yield Fault(f"{path}.engine_kwargs.{name}", "unknown to vLLM, expected an argument")
