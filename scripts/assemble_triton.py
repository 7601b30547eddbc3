"""Assemble a Triton model repository that is complete in itself.  Runs in envs/triton.

With an engine: an ensemble of preprocessing, the engine and postprocessing, and the same in Python.
Without: the LLM API on a checkpoint.  The folder works wherever it is moved, mounted or copied to.
"""

import argparse
import json
import shutil
from pathlib import Path

from ingot.checkpoint.config import read_config
from ingot.entry import run
from ingot.fields import read_json
from ingot.files import digest, sealed
from ingot.files.atomic import replacing
from ingot.refused import Refused
from ingot.triton import pbtxt, schema
from ingot.triton.schema import BLS, ENGINE, ENSEMBLE, POSTPROCESSING, PREPROCESSING
from ingot.triton.server import launch_script

REQUEST = {  # the guide's
    "text_input": "What is machine learning?",
    "max_tokens": 20,
    "bad_words": "",
    "stop_words": "",
    "pad_id": 2,
    "end_id": 2,
}
LLMAPI_REQUEST = {"text_input": REQUEST["text_input"], "sampling_param_max_tokens": 20}


def assemble_engine(
    engine: Path, tokenizer: list[Path], models: list[Path], runtime: dict, repository: Path
) -> None:
    engine_config = read_json(engine / "config.json")
    parameters = {**schema.DEFAULTS, **schema.words(runtime)}
    with replacing(repository) as partial:
        for config in pbtxt.engine_models(engine_config, parameters):
            version = partial / config.name / "1"
            version.mkdir(parents=True)
            (partial / config.name / "config.pbtxt").write_text(pbtxt.text(config))
        for path in models:
            if path.parent.name in (PREPROCESSING, POSTPROCESSING, BLS):
                shutil.copyfile(path, partial / path.parent.name / "1" / path.name)
        (partial / ENSEMBLE / "1/README").write_text("An ensemble has no files of its own.\n")
        wiring = json.dumps(pbtxt.wiring(), indent=2) + "\n"
        (partial / BLS / "1/wiring.json").write_text(wiring)
        for name in (PREPROCESSING, POSTPROCESSING):
            place_tokenizer(tokenizer, partial / name / "1/tokenizer")
        for path in sealed.files(engine):
            digest.link(path, partial / ENGINE / "1" / path.name)
        finish(partial, engine_config["pretrained_config"]["mapping"]["world_size"], REQUEST)


def assemble_llmapi(
    checkpoint: list[Path], tokenizer: list[Path], models: list[Path], tp: int, pp: int,
    runtime: dict, repository: Path,
) -> None:  # fmt: skip
    import yaml

    named = {path.name: path for path in checkpoint}
    read_config(named["config.json"])
    batch, decoupled = runtime.pop("max_batch_size", 0), runtime.pop("decoupled", True)
    with replacing(repository) as partial:
        version = partial / ENGINE / "1"
        (version / "model").mkdir(parents=True)
        config = pbtxt.llmapi_model(batch, decoupled)
        (partial / ENGINE / "config.pbtxt").write_text(pbtxt.text(config))
        for path in models:
            if path.parent.name == "llmapi":
                shutil.copyfile(path, version / path.name)
        for path in sorted({*checkpoint, *tokenizer}):
            # what we fetched is linked; all else, which others may edit in place, is copied
            ours = path.suffix == ".safetensors" and path.parent.suffix == ".hf"
            (digest.link if ours else shutil.copyfile)(path, version / "model" / path.name)
        arguments = {
            "backend": "pytorch",
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            **runtime,
        }
        (version / "model.yaml").write_text(yaml.safe_dump(arguments, sort_keys=False))
        finish(partial, tp * pp, LLMAPI_REQUEST, llmapi=True)


def place_tokenizer(files: list[Path], place: Path) -> None:
    named = {path.name: path for path in files}
    place.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name not in named:
            raise Refused(f"{name}: not in the checkpoint, expected by the server; add it")
        shutil.copyfile(named[name], place / name)


def finish(partial: Path, world: int, request: dict, llmapi: bool = False) -> None:
    for path in partial.rglob("model.py"):
        # Where a server would leave compiled code: its Python heeds no PYTHONDONTWRITEBYTECODE,
        # and the folder would not be what SHA256SUMS says any more.
        (path.parent / "__pycache__").touch()
    launch = partial / "serve"
    launch.write_text(launch_script(world, llmapi))
    launch.chmod(0o755)
    (partial / "smoke.json").write_text(json.dumps(request) + "\n")
    sealed.seal(partial)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend",
        choices=["engine", "llmapi"],
        default="engine",
        help="what serves the model (default: engine)",
    )
    parser.add_argument("--engine", type=Path, nargs="*", help="an engine's directory")
    parser.add_argument(
        "--checkpoint", type=Path, nargs="*", help="config.json and weights, for the LLM API"
    )
    parser.add_argument("--tokenizer", type=Path, nargs="+", required=True, help="tokenizer files")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="our model.py files")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel size")
    parser.add_argument("--pp", type=int, default=1, help="number of pipeline stages")
    parser.add_argument("--runtime", type=json.loads, default={}, help="parameters, as JSON")
    parser.add_argument("--repository", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(argv)
    tokenizer, models, runtime = options.tokenizer, options.models, options.runtime
    if reason := schema.why_not(options.backend, runtime):
        raise Refused(f"{options.repository}: {reason}; correct trtllm.runtime")
    if options.backend == "llmapi":
        tp, pp = options.tp, options.pp
        checkpoint = options.checkpoint
        assemble_llmapi(checkpoint, tokenizer, models, tp, pp, runtime, options.repository)
        return
    if len(options.engine or ()) != 1:
        parser.error("--engine: one directory is expected with backend engine")
    assemble_engine(options.engine[0], tokenizer, models, runtime, options.repository)


if __name__ == "__main__":
    run(main)
