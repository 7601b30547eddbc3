"""Assemble all that the shortfin server needs in one folder.  Runs in the driver's environment.

The folder is complete in itself: it works wherever it is moved, mounted or copied to.
"""

import argparse
import json
import shutil
from pathlib import Path

from ingot.entry import run
from ingot.files import digest, sealed
from ingot.files.atomic import replacing
from ingot.refused import Refused
from ingot.serve.launch import HERE

LAUNCH = """\
#!/bin/sh
# Serve this folder.  Needs a Python with requirements.lock installed: PYTHON=... ./serve
# Arguments are added to the server's own, and win: ./serve --port 8080 --device_ids 0
{here}{environment}exec "${{PYTHON:-python3}}" -m shortfin_apps.llm.server \\
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


def bundle_shortfin(
    vmfb: Path,
    config: Path,
    parameters: list[Path],
    tokenizer: list[Path],
    lock: Path,
    device: str,
    bundle: Path,
) -> None:
    named = {path.name: path for path in tokenizer}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name not in named:
            raise Refused(f"{name}: not in the checkpoint, expected by the server; add it")
    if not json.loads(named["tokenizer_config.json"].read_bytes()).get("eos_token"):
        raise Refused(
            f"{named['tokenizer_config.json']}: eos_token is missing; the server stops at it"
        )
    files = {
        "model.vmfb": vmfb,
        "config.json": config,
        "tokenizer.json": named["tokenizer.json"],
        "tokenizer_config.json": named["tokenizer_config.json"],
        "requirements.lock": lock,
        **dict(zip(parameter_names(len(parameters)), parameters, strict=True)),
    }
    with replacing(bundle) as partial:
        partial.mkdir()
        for name, path in files.items():
            place(path, partial / name)
        launch = partial / "serve"
        launch.write_text(launch_script(device, len(parameters)))
        launch.chmod(0o755)
        sealed.seal(partial)


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


def place(source: Path, target: Path) -> None:
    """A hard link of what we built costs no room and no time; all else, which others may edit in
    place, is copied."""
    if source.suffix in (".irpa", ".vmfb"):
        digest.link(source, target)
    else:
        shutil.copyfile(source, target)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vmfb", type=Path, required=True, help="the compiled program")
    parser.add_argument("--config", type=Path, required=True, help="the server's config")
    parser.add_argument("--parameters", type=Path, nargs="+", required=True, help="IRPA files")
    parser.add_argument("--tokenizer", type=Path, nargs="+", required=True, help="tokenizer files")
    parser.add_argument("--lock", type=Path, required=True, help="the pins to serve with")
    parser.add_argument("--device", required=True, help="local-task or hip")
    parser.add_argument("--bundle", type=Path, required=True, help="the folder to write")
    bundle_shortfin(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
