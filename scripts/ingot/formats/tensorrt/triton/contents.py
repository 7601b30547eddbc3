"""What a Triton model repository holds: models, engine or checkpoint, tokenizer, how to serve it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.fields import Whole, read_json
from ingot.base.refused import Refused
from ingot.base.sealed import Contents, Ours
from ingot.formats.tensorrt import trtllm
from ingot.formats.tensorrt.triton import pbtxt, schema
from ingot.formats.tensorrt.triton.schema import (
    BLS,
    ENGINE,
    ENSEMBLE,
    POSTPROCESSING,
    PREPROCESSING,
)
from ingot.formats.tensorrt.triton.server import launch_script
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import read_config

REQUEST = {  # the guide's
    "text_input": "What is machine learning?",
    "max_tokens": 20,
    "bad_words": "",
    "stop_words": "",
    "pad_id": 2,
    "end_id": 2,
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
ENGINE_CONFIG = {  # what is read of an engine's config.json
    "build_config": {"max_batch_size": Whole(), "max_beam_width?": Whole()},
    "pretrained_config": {"mapping": {"world_size": Whole()}},
}
LLMAPI_REQUEST = {"text_input": REQUEST["text_input"], "sampling_param_max_tokens": 20}


@dataclass(kw_only=True)
class Parts:
    """What `contents` takes, as options of a step."""

    backend: Annotated[str, "what serves the model", schema.BACKENDS] = "engine"
    engine: Annotated[list[Path], "an engine's directory"] = ()
    onnx: Annotated[list[Path], "an ONNX folder"] = ()
    checkpoint: Annotated[list[Path] | None, "config.json and weights, for the LLM API"] = None
    tokenizer: Annotated[list[Path], "tokenizer files"]
    models: Annotated[list[Path], "our model.py files"]
    tp: Annotated[int, "tensor parallel size"] = 1
    pp: Annotated[int, "number of pipeline stages"] = 1
    runtime: Annotated[dict[str, Any] | None, "parameters, as JSON"] = None


def contents(
    backend: str,
    engine: list[Path],
    onnx: list[Path],
    checkpoint: list[Path] | None,
    tokenizer: list[Path],
    models: list[Path],
    tp: int,
    pp: int,
    runtime: dict[str, Any] | None = None,
) -> Contents:
    runtime = runtime or {}
    if reason := schema.why_not(backend, runtime):
        raise Refused(f"trtllm.runtime: {reason}")
    if backend == "llmapi":
        found = of_checkpoint(checkpoint or [], tokenizer, models, tp, pp, runtime)
    else:
        given = engine if backend == "engine" else onnx
        if len(given) != 1:
            raise Refused(f"--{backend}: {len(given)} folders, expected one with backend {backend}")
        make = of_engine if backend == "engine" else of_onnx
        found = make(given[0], tokenizer, models, runtime)
    # Where a server would leave compiled code: its Python heeds no PYTHONDONTWRITEBYTECODE, and
    # the folder would not be what SHA256SUMS says any more.
    code = [name for name in found if name.endswith("/model.py")]
    return found | {f"{name.rpartition('/')[0]}/__pycache__": "" for name in code}


def of_engine(
    engine: Path, tokenizer: list[Path], models: list[Path], runtime: dict[str, Any]
) -> Contents:
    config = read_json(engine / "config.json", ENGINE_CONFIG)
    world = config["pretrained_config"]["mapping"]["world_size"]
    beams, asked = config["build_config"].get("max_beam_width", 1), schema.words(runtime)
    if int(asked.get("max_beam_width") or 1) > beams:
        raise Refused(
            f"trtllm.runtime: max_beam_width is {asked['max_beam_width']}, expected {beams} at most as "
            "the engine's; build it with more"
        )
    for rank in range(world):
        file = engine / f"rank{rank}.engine"
        if not file.is_file() or not file.stat().st_size:
            raise Refused(f"{file}: missing or empty, expected {world} ranks")
    configs = pbtxt.engine_models(config, {**schema.DEFAULTS, **asked})
    found = around(configs, tokenizer, models)
    for path in sealed.files(engine):
        found[f"{ENGINE}/1/{path.name}"] = Ours(path)
    return found | served(world, REQUEST, "engine")


def of_onnx(
    onnx: Path, tokenizer: list[Path], models: list[Path], runtime: dict[str, Any]
) -> Contents:
    """The ensemble of an engine, with ONNX Runtime in its place."""
    asked = {**schema.ONNX_DEFAULTS, **runtime}
    about = read_json(onnx / "graph.json", {"graph": str})
    if about["graph"] == "prefill":
        raise Refused(f"{onnx}: a graph without a KV cache, expected one; ask for another .onnx")
    config = {"build_config": {"max_batch_size": asked["max_batch_size"]}, "pretrained_config": {}}
    configs = pbtxt.engine_models(config, {"requests": str(asked["requests"])}, onnx=True)
    found = around(configs, tokenizer, models)
    for path in models:
        if path.parent.name == "onnx":
            found[f"{ENGINE}/1/{path.name}"] = path
    for path in sealed.files(onnx):
        found[f"{ENGINE}/1/model/{path.relative_to(onnx).as_posix()}"] = Ours(path)
    return found | served(1, REQUEST, "onnx")


def around(configs: list, tokenizer: list[Path], models: list[Path]) -> Contents:
    """The five models, but for what the engine's folder holds."""
    found: Contents = {f"{model.name}/config.pbtxt": pbtxt.text(model) for model in configs}
    for path in models:
        if path.parent.name in (PREPROCESSING, POSTPROCESSING, BLS):
            found[f"{path.parent.name}/1/{path.name}"] = path
    found[f"{ENSEMBLE}/1/README"] = "An ensemble has no files of its own.\n"
    found[f"{BLS}/1/wiring.json"] = json.dumps(pbtxt.wiring(), indent=2) + "\n"
    named = tokenizer_files(tokenizer)
    for name in TOKENIZER:
        for model in (PREPROCESSING, POSTPROCESSING):
            found[f"{model}/1/tokenizer/{name}"] = named[name]
    return found


def of_checkpoint(
    checkpoint: list[Path],
    tokenizer: list[Path],
    models: list[Path],
    tp: int,
    pp: int,
    runtime: dict[str, Any],
) -> Contents:
    import yaml

    if not checkpoint:
        raise Refused("--checkpoint: missing, expected config.json and weights; name them")
    tokenizer_files(tokenizer)
    quantised = [path for path in checkpoint if path.is_dir()]  # a folder, with all that it needs
    if not quantised:
        read_config(Checkpoint(checkpoint)["config.json"], can=trtllm.CAN)
        read_checkpoint(Checkpoint(checkpoint))
    arguments = {"backend": "pytorch", "tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    arguments |= {
        key: value
        for key, value in runtime.items()
        if key not in ("max_batch_size", "decoupled")  # which are of config.pbtxt
    }
    config = pbtxt.llmapi_model(runtime.get("max_batch_size", 0), runtime.get("decoupled", True))
    found: Contents = {f"{ENGINE}/config.pbtxt": pbtxt.text(config)}
    for path in models:
        if path.parent.name == "llmapi":
            found[f"{ENGINE}/1/{path.name}"] = path
    for folder in quantised:
        for path in sealed.files(folder):
            found[f"{ENGINE}/1/model/{path.relative_to(folder).as_posix()}"] = Ours(path)
    for path in [] if quantised else sorted({*checkpoint, *tokenizer}):
        fetched = path.suffix == ".safetensors" and path.parent.suffix == ".hf"
        found[f"{ENGINE}/1/model/{name_of(path)}"] = Ours(path) if fetched else path
    found[f"{ENGINE}/1/model.yaml"] = yaml.safe_dump(arguments, sort_keys=False)
    return found | served(tp * pp, LLMAPI_REQUEST, "llmapi")


def tokenizer_files(tokenizer: list[Path]) -> dict[str, Path]:
    """By name.  Refused where one is missing that every server needs."""
    named = {path.name: path for path in tokenizer}
    for name in TOKENIZER:
        if name not in named:
            raise Refused(f"{name}: not in the checkpoint, expected by the server; add it")
    return named


def served(world: int, request: dict[str, Any], backend: str) -> Contents:
    """How to serve it, and a request to try."""
    return {"serve": launch_script(world, backend), "smoke.json": json.dumps(request) + "\n"}
