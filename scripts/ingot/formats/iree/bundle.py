"""What a shortfin bundle holds: the program, its archives, the tokenizer, the pins, how to serve it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ingot.base.launch import HERE
from ingot.base.refused import Refused
from ingot.base.sealed import Contents, Ours

LAUNCH = """\
#!/bin/sh
# Serve this folder.  Needs a Python with requirements.lock installed: PYTHON=... ./serve
# Arguments are added to the server's own, and win: ./serve --port 8080 --device_ids 0
{here}"${{PYTHON:=python3}}" -c 'import importlib.util as u; exit(not u.find_spec("shortfin_apps"))' || {{
    echo "serve: $PYTHON has no shortfin_apps; PYTHON=... names one that has requirements.lock" >&2
    exit 1
}}
{environment}exec "$PYTHON" -m shortfin_apps.llm.server \\
    --tokenizer_json=tokenizer.json \\
    --tokenizer_config_json=tokenizer_config.json \\
    --model_config=config.json \\
    --vmfb=model.vmfb \\
    --parameters {parameters} \\
    --device={device} \\
    {device_ids}--host=127.0.0.1 \\
    --port=8000 \\
    "$@"
"""


@dataclass
class Parts:
    """What `contents` takes, as options of a step."""

    vmfb: Annotated[Path, "the compiled program"]
    config: Annotated[Path, "the server's config"]
    parameters: Annotated[list[Path], "IRPA files"]
    tokenizer: Annotated[list[Path], "tokenizer files"]
    lock: Annotated[Path, "the pins to serve with"]
    device: Annotated[str, "local-task or hip"]


def contents(
    vmfb: Path,
    config: Path,
    parameters: list[Path],
    tokenizer: list[Path],
    lock: Path,
    device: str,
) -> Contents:
    named = {path.name: path for path in tokenizer}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name not in named:
            raise Refused(f"{name}: not in the checkpoint, expected by the server; add it")
    if not json.loads(named["tokenizer_config.json"].read_bytes()).get("eos_token"):
        raise Refused(
            f"{named['tokenizer_config.json']}: eos_token is missing; the server stops at it"
        )
    archives = zip(parameter_names(len(parameters)), map(Ours, parameters), strict=True)
    return {
        "model.vmfb": Ours(vmfb),
        "config.json": config,
        "tokenizer.json": named["tokenizer.json"],
        "tokenizer_config.json": named["tokenizer_config.json"],
        "requirements.lock": lock,
        **dict(archives),
        "serve": launch_script(device, len(parameters)),
    }


def launch_script(device: str, archives: int) -> str:
    """How to serve on as many devices as there are ranks: a set's root is no rank."""
    devices = max(1, archives - 1)
    environment = ids = ""
    if device != "local-task":
        ids = f"--device_ids {' '.join(map(str, range(devices)))} \\\n    "
    elif devices > 1:  # else it makes one device of each NUMA node, whatever it is asked for
        nodes = ",".join("0" * devices)
        environment = f"export SHORTFIN_HOSTCPU_TOPOLOGY_NODES={nodes}\n"
    names = " ".join(parameter_names(archives))
    return LAUNCH.format(
        here=HERE, parameters=names, device=device, device_ids=ids, environment=environment
    )


def parameter_names(count: int) -> list[str]:
    return ["model.irpa", *(f"model.rank{rank}.irpa" for rank in range(count - 1))]
