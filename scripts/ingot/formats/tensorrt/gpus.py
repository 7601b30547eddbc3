"""What this machine has to build engines with: its GPUs, and trtllm-build."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

TRTLLM, TENSORRT = "1.2.1", "10.14.1.48"  # the last that builds engines, and what it is built with
PROGRAM = "INGOT_TRTLLM"  # trtllm-build, where it is not on the PATH
UNKNOWN = "unknown"
ASK = "from importlib.metadata import version as v; print(v('tensorrt_llm'), v('tensorrt'))"


def gpus() -> list[tuple[str, str, str]]:
    """UUID, name and compute capability of each NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves."""
    return [(uuid, name, capability) for uuid, name, capability, _ in _asked()]


def memories() -> list[tuple[str, str, int]]:
    """Name, compute capability and bytes of memory of each of them."""
    return [
        (name, capability, int(memory) << 20)
        for _, name, capability, memory in _asked()
        if memory.isdecimal()  # not of one that shares the machine's
    ]


def _asked() -> list[tuple[str, str, str, str]]:
    """UUID, name, compute capability and MiB, as nvidia-smi says them."""
    fields = "--query-gpu=uuid,name,compute_cap,memory.total"
    try:
        done = subprocess.run(
            ["nvidia-smi", fields, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    split: list[Any] = [tuple(map(str.strip, line.split(","))) for line in lines]
    found = [line for line in split if len(line) == len(fields.split(","))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    words = visible.split(",")
    return [gpu for n, gpu in enumerate(found) if str(n) in words or gpu[0] in words]


def program() -> Path | None:
    """trtllm-build on this machine."""
    found = os.environ.get(PROGRAM) or shutil.which("trtllm-build")
    return Path(found) if found and Path(found).is_file() else None


def versions() -> str:
    """Of TensorRT-LLM and TensorRT, as `1.2.1 10.14.1.48`; those that we pin where it is not here."""
    tool = program()
    if tool is None:
        return f"{TRTLLM} {TENSORRT}"
    try:
        done = subprocess.run(
            [*_interpreter(tool), "-c", ASK],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.strip() if done.returncode == 0 else UNKNOWN


def _interpreter(tool: Path) -> list[str]:
    """The Python of a program that pip installed: its first line, or the second of a shell script."""
    with tool.open("rb") as file:
        first, second = (file.readline().decode(errors="replace").strip() for _ in range(2))
    if second.startswith("'''exec' "):  # pip's way around long paths
        return shlex.split(second.removeprefix("'''exec' "))[:1]
    return shlex.split(first.removeprefix("#!"))


def why_not(capability: str) -> str | None:
    """Why no engine for `capability` can be built on this machine; or None."""
    here = gpus()
    if not here:
        return "building an engine needs an NVIDIA GPU and this machine has none; run it on one with a GPU"
    if capability not in [found for *_, found in here]:
        _, name, found = here[0]
        return (
            f"built for compute capability {capability}, but {name} has {found}; name the variant "
            "of this GPU, or run on another"
        )
    if program() is None:
        return (
            f"trtllm-build {TRTLLM} is not on the PATH; install it as envs/trtllm says, or "
            f"set {PROGRAM} to it"
        )
    found = versions()
    if found == UNKNOWN:
        return f"{program()} does not say its version; set {PROGRAM} to the one that pip installed"
    if [part.split("+")[0] for part in found.split()] != [TRTLLM, TENSORRT]:
        return (
            f"TensorRT-LLM and TensorRT are {found}, expected {TRTLLM} and "
            f"{TENSORRT}; install them as envs/trtllm says"
        )
    return None
