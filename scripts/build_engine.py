"""Build a TensorRT-LLM engine by trtllm-build, on a GPU.  Runs in the driver's environment.

The checkpoint is checked before, the engine's own description after.  Engines are not reproducible:
what counts is what went in.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import heartbeat
from ingot.base.fields import read_json
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.tensorrt import checkpoint as trtllm_checkpoint
from ingot.formats.tensorrt import gpus


def build_engine(
    trtllm_checkpoint_: Annotated[Path, "the checkpoint to build from"],
    engine: Annotated[Path, "the directory to write"],
    compute_capability: Annotated[str, "of the GPU, such as 9.0"],
    versions: Annotated[str, "of TensorRT-LLM and of TensorRT"],
    flags: Annotated[list[str], "after --: flags of trtllm-build"],
    workers: Annotated[int, "ranks built at a time, one GPU each"] = 1,
) -> None:
    if reason := gpus.why_not(compute_capability):
        raise Refused(f"{engine}: {reason}")
    if (found := gpus.versions()) != versions:
        raise Refused(
            f"{engine}: TensorRT-LLM and TensorRT are {found} here, planned with {versions}"
        )
    built = trtllm_checkpoint.read(trtllm_checkpoint_)
    lengths(built, engine, flags)
    with replacing(engine) as partial, tempfile.TemporaryDirectory() as scratch:
        partial.mkdir()
        command: list[object] = [gpus.program(), "--checkpoint_dir", trtllm_checkpoint_.absolute()]
        command += ["--output_dir", partial.absolute(), "--workers", workers, *flags]
        run_build([str(word) for word in command], scratch, engine, compute_capability)
        check(partial, engine, built.mapping.world, versions)
        sealed.seal(partial)


def lengths(built: trtllm_checkpoint.TrtllmCheckpoint, engine: Path, flags: list[str]) -> None:
    """What the flags ask for must be within what the model was trained for."""
    asked = dict(flag[2:].split("=") for flag in flags if "=" in flag)
    for name in ("max_seq_len", "max_input_len"):
        if int(asked.get(name, 0)) > built.config.context:
            raise Refused(
                f"{engine}: {name} is {asked[name]}, but the model was trained for "
                f"{built.config.context} tokens; set trtllm.build.{name} to that or less"
            )


def run_build(command: list[str], scratch: str, engine: Path, capability: str) -> None:
    """In an empty folder: trtllm-build leaves a timing cache where it stands."""
    uuids = [uuid for uuid, _, found in gpus.gpus() if found == capability]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    if libraries := os.environ.get("INGOT_LIBRARY_PATH"):  # containers find CUDA's libraries by it
        environment["LD_LIBRARY_PATH"] = libraries
    last = "nothing"
    with heartbeat(f"{engine}: trtllm-build"):
        process = subprocess.Popen(
            command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
        code = process.wait()
    if code:
        raise Refused(f"{engine}: trtllm-build ended with {code}: {last}")


def check(partial: Path, engine: Path, world: int, versions: str) -> None:
    """An engine of each rank, and a description by the version that was asked for."""
    for rank in range(world):
        path = partial / f"rank{rank}.engine"
        if not path.is_file() or not path.stat().st_size:
            raise Refused(f"{engine / path.name}: not written by trtllm-build; its log says why")
    description = read_json(partial / "config.json")
    wanted = versions.split()[0].split("+")[0]
    if description.get("version") != wanted:
        raise Refused(
            f"{engine / 'config.json'}: version is {description.get('version')}, expected {wanted}"
        )
    # where it was built is nobody's business, and decides nothing
    description["pretrained_config"].get("mapping", {}).pop("rank", None)
    (partial / "config.json").write_text(json.dumps(description, indent=4) + "\n")


if __name__ == "__main__":
    step(build_engine)
