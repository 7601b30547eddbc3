"""A Triton model repository held against itself: the first thing wrong is one line.

The server finds some of it after minutes of loading, and some never: a placeholder in a parameter, a
value that the backend does not know and replaces by its default.
"""

import itertools
import os
from pathlib import Path

from ingot.checkpoint.files import Checkpoint
from ingot.checkpoint.safetensors import read_checkpoint
from ingot.fields import read_json
from ingot.refused import Refused
from ingot.triton import pbtxt
from ingot.triton.pbtxt import kind
from ingot.triton.schema import (
    BLS,
    ENGINE,
    ENSEMBLE,
    MODELS,
    POSTPROCESSING,
    PREPROCESSING,
    QUEUE,
    REQUIRED,
    why_not_value,
)

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
NEEDED = {  # below a model's folder
    PREPROCESSING: (
        "1/model.py",
        "1/tokenizer/tokenizer.json",
        "1/tokenizer/tokenizer_config.json",
    ),
    POSTPROCESSING: (
        "1/model.py",
        "1/tokenizer/tokenizer.json",
        "1/tokenizer/tokenizer_config.json",
    ),
    BLS: ("1/model.py", "1/wiring.json"),
    ENGINE: ("1/config.json",),
    ENSEMBLE: ("1",),
}


def check(repository: Path) -> str:
    """The backend, `engine` or `llmapi`.  Refused: the first thing that is wrong."""
    if not repository.is_dir():
        raise Refused(f"{repository}: missing, expected a Triton model repository; build it")
    folders = sorted(path.name for path in repository.iterdir() if path.is_dir())
    if (repository / ENGINE / "1/model.yaml").is_file():
        _only(repository, folders, (ENGINE,))
        _llmapi(repository)
        return "llmapi"
    _only(repository, folders, MODELS)
    configs = {name: read(repository, name) for name in MODELS}
    for name in MODELS:
        for file in NEEDED[name]:
            path = repository / name / file
            if not path.exists() or (path.is_file() and not path.stat().st_size):
                raise Refused(f"{path}: missing or empty; build it again")
            if path.suffix == ".json":
                read_json(path)
        _one_version(repository / name)
    if read_json(repository / BLS / "1/wiring.json") != pbtxt.wiring():
        raise Refused(
            f"{repository / BLS / '1/wiring.json'}: not what the ensemble does; build it again"
        )
    _wiring(repository, configs)
    _parameters(repository, configs)
    engine_config = _engine(repository, configs)
    _as_written(repository, configs, engine_config)
    _launch(repository)
    return "engine"


def _one_version(model: Path) -> None:
    """The server takes the highest."""
    for path in model.iterdir():
        if path.is_dir() and path.name != "1":
            raise Refused(f"{path}: a second version, expected 1 alone; remove it")


def _launch(repository: Path) -> None:
    path = repository / "serve"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Refused(f"{path}: missing, expected the launch script, executable; build it again")


def _as_written(repository: Path, configs: dict, engine_config: dict) -> None:
    """Line by line what we would write for the same engine and parameters."""
    engine = configs[ENGINE]
    parameters = {key: value.string_value for key, value in engine.parameters.items()}
    queue = engine.dynamic_batching
    parameters[QUEUE[0]] = str(queue.max_queue_delay_microseconds)
    parameters[QUEUE[1]] = str(queue.default_queue_policy.max_queue_size)
    for wanted in pbtxt.engine_models(engine_config, parameters):
        _same(repository, wanted, configs[wanted.name])


def _same(repository: Path, wanted, found) -> None:
    lines = (pbtxt.text(config).splitlines() for config in (wanted, found))
    for expected, line in itertools.zip_longest(*lines, fillvalue="nothing"):
        if expected != line:
            raise Refused(
                f"{repository / wanted.name / 'config.pbtxt'}: {line.strip()}, expected "
                f"{expected.strip()}; build it again"
            )


def _only(repository: Path, folders: list[str], wanted: tuple[str, ...]) -> None:
    for name in wanted:
        if name not in folders:
            raise Refused(f"{repository / name}: missing, expected a model; build it again")
    for name in folders:
        if name not in wanted:
            raise Refused(
                f"{repository / name}: no model of this backend, the server would load it; remove it"
            )


def read(repository: Path, name: str):
    path = repository / name / "config.pbtxt"
    if not path.is_file():
        raise Refused(f"{path}: missing, expected the model's description; build it again")
    content = path.read_text(errors="replace")
    for number, line in enumerate(content.splitlines(), 1):
        if "${" in line:
            raise Refused(
                f"{path}: line {number} has a placeholder that was never filled in: {line.strip()}"
            )
    try:
        config = pbtxt.parsed(content)
    except ValueError as error:
        raise Refused(f"{path}: not a model's description ({error}); build it again") from None
    if config.name != name:
        raise Refused(f"{path}: name is {config.name}, expected {name} as its folder; correct it")
    return config


def _wiring(repository: Path, configs: dict) -> None:
    """Every tensor that a step takes is made by one before or asked for, with type and dims alike."""
    ensemble = configs[ENSEMBLE]
    path = repository / ENSEMBLE / "config.pbtxt"
    known = {tensor.name: kind(tensor) for tensor in ensemble.input}
    steps = [step.model_name for step in ensemble.ensemble_scheduling.step]
    if steps != [PREPROCESSING, ENGINE, POSTPROCESSING]:
        raise Refused(
            f"{path}: steps are {steps}, expected {PREPROCESSING}, {ENGINE}, {POSTPROCESSING}; "
            "build it again"
        )
    asked = {tensor.name: tensor.optional for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        member = configs[step.model_name]
        inputs = {tensor.name: tensor for tensor in member.input}
        outputs = {tensor.name: tensor for tensor in member.output}
        for name, tensor in step.input_map.items():
            if name not in inputs:
                raise Refused(f"{path}: {step.model_name} has no input {name}; correct its step")
            if tensor not in known:
                raise Refused(
                    f"{path}: {step.model_name} takes {tensor}, which no step before makes and no "
                    "request brings; correct its step"
                )
            _alike(path, tensor, known[tensor], f"{step.model_name}'s {name}", kind(inputs[name]))
            if asked.get(tensor) and not inputs[name].optional:
                raise Refused(f"{path}: {tensor} is optional, {step.model_name} needs {name}")
        for name, tensor in inputs.items():
            if not tensor.optional and name not in step.input_map:
                raise Refused(
                    f"{path}: {step.model_name} needs {name}, which its step does not give it"
                )
        for name, tensor in step.output_map.items():
            if name not in outputs:
                raise Refused(f"{path}: {step.model_name} has no output {name}; correct its step")
            if tensor in known:
                raise Refused(
                    f"{path}: {tensor} is made twice; correct the step of {step.model_name}"
                )
            known[tensor] = kind(outputs[name])
    for tensor in ensemble.output:
        if tensor.name not in known:
            raise Refused(f"{path}: no step makes the output {tensor.name}; correct a step")
        _alike(path, tensor.name, known[tensor.name], "the ensemble's output", kind(tensor))
    bls = {tensor.name: kind(tensor) for tensor in configs[BLS].input}
    for tensor in ensemble.input:
        if bls.get(tensor.name) != kind(tensor):
            raise Refused(
                f"{repository / BLS / 'config.pbtxt'}: input {tensor.name} is not the ensemble's"
            )


def _alike(path: Path, name: str, made, other: str, taken) -> None:
    same = len(made[1]) == len(taken[1]) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(made[1], taken[1], strict=True)
    )
    if made[0] != taken[0] or not same:
        raise Refused(
            f"{path}: {name} is {made[0]}{list(made[1])}, but {other} {taken[0]}{list(taken[1])}; "
            "correct one"
        )


def _parameters(repository: Path, configs: dict) -> None:
    for name, wanted in pbtxt.PYTHON.items():
        for key in wanted:
            value = configs[name].parameters[key].string_value
            path = repository / name / "config.pbtxt"
            if not value:
                raise Refused(f"{path}: parameter {key} is missing, expected {wanted[key]}; set it")
            if key == "tokenizer_dir" and Path(value).is_absolute():
                raise Refused(
                    f"{path}: {key} is {value}, expected a path below 1/: it could not be moved"
                )
            if key == "tokenizer_dir" and not (repository / name / "1" / value).is_dir():
                raise Refused(f"{path}: {key} is {value}, which is not in 1/; correct it")
    path, engine = repository / ENGINE / "config.pbtxt", configs[ENGINE]
    for key in REQUIRED:
        if key not in engine.parameters:
            raise Refused(f"{path}: parameter {key} is missing, and the backend needs it; set it")
    for key, value in engine.parameters.items():
        if key == "gpt_model_path" and not value.string_value:
            raise Refused(f"{path}: gpt_model_path is empty, expected {ENGINE}/1; correct it")
        if reason := why_not_value(key, value.string_value):
            raise Refused(f"{path}: {reason}; correct it")
    for name in (ENGINE, BLS):
        if not configs[name].model_transaction_policy.decoupled:
            raise Refused(
                f"{repository / name / 'config.pbtxt'}: decoupled is false, expected true: nothing "
                "could be streamed"
            )


def _engine(repository: Path, configs: dict) -> dict:
    """The engine's own description."""
    path = repository / ENGINE / "config.pbtxt"
    place = Path(configs[ENGINE].parameters["gpt_model_path"].string_value)
    folder = repository / place
    if place != Path(ENGINE, "1"):
        raise Refused(
            f"{path}: gpt_model_path is {place}, expected a folder below the repository: {ENGINE}/1"
        )
    engine_config = read_json(folder / "config.json")
    try:
        batch = engine_config["build_config"]["max_batch_size"]
        world = engine_config["pretrained_config"]["mapping"]["world_size"]
        beams = engine_config["build_config"].get("max_beam_width", 1)
    except (KeyError, TypeError, AttributeError):
        batch = world = beams = None
    if not all(isinstance(n, int) and n > 0 for n in (batch, world, beams)):
        raise Refused(
            f"{folder / 'config.json'}: max_batch_size is {batch}, world_size {world}, expected an "
            "engine's description; build it again"
        )
    for rank in range(world):
        engine = folder / f"rank{rank}.engine"
        if not engine.is_file() or not engine.stat().st_size:
            raise Refused(f"{engine}: missing or empty, expected {world} ranks; build it again")
    for name, config in configs.items():
        if config.max_batch_size != batch:
            raise Refused(
                f"{repository / name / 'config.pbtxt'}: max_batch_size is {config.max_batch_size}, "
                f"expected {batch} as the engine's; make them equal"
            )
    asked = configs[ENGINE].parameters["max_beam_width"].string_value or "1"
    if int(asked) > beams:
        raise Refused(
            f"{path}: max_beam_width is {asked}, expected {beams} at most as the engine's"
        )
    return engine_config


def _llmapi(repository: Path) -> None:
    import yaml

    found, path = read(repository, ENGINE), repository / ENGINE / "1/model.yaml"
    try:
        arguments = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: not YAML ({str(error).splitlines()[0]}); build it again") from None
    if not isinstance(arguments, dict):
        raise Refused(
            f"{path}: holds a {type(arguments).__name__}, expected arguments of LLM; build it again"
        )
    for key, value in arguments.items():
        if "${" in str(value):
            raise Refused(f"{path}: {key} is {value}, a placeholder that was never filled in")
    if arguments.get("backend") != "pytorch":
        raise Refused(
            f"{path}: backend is {arguments.get('backend')}, expected pytorch; build it again"
        )
    for name in ("1/model.py", "1/model/config.json", *(f"1/model/{n}" for n in TOKENIZER)):
        if not (repository / ENGINE / name).is_file():
            raise Refused(f"{repository / ENGINE / name}: missing; build it again")
    read_checkpoint(Checkpoint([repository / ENGINE / "1/model"]))
    decoupled = found.model_transaction_policy.decoupled
    _same(repository, pbtxt.llmapi_model(found.max_batch_size, decoupled), found)
    _one_version(repository / ENGINE)
    _launch(repository)
