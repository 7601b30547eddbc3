"""A Triton server started from a model repository; and the script that starts it."""

import json
import os
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ingot.base import server
from ingot.base.launch import HERE

HEAD = """\
#!/bin/sh
# Serve this folder.  Needs Triton with {needs}: TRITONSERVER=... ./serve
# Arguments are added to the server's own, and win: ./serve --http-port=8080 --http-address=0.0.0.0
{here}server=${{TRITONSERVER:-/opt/tritonserver/bin/tritonserver}}
"""
COMMON = (
    "--model-repository=.",  # this folder: the python backend stumbles over blanks in a path
    "--disable-auto-complete-config",
)
FIRST = (
    "--http-address=127.0.0.1 --http-port=8000",
    "--grpc-address=127.0.0.1 --grpc-port=8001",
    "--metrics-address=127.0.0.1 --metrics-port=8002",
)
OTHER = (  # the other ranks answer nobody: they compute with the first
    "--model-control-mode=explicit --load-model=tensorrt_llm",
    "--allow-http=false --allow-grpc=false --allow-metrics=false",
)


NEEDS = {  # by what serves the model
    "engine": "its TensorRT-LLM backend",
    "llmapi": "its Python backend, tensorrt_llm and tokenizers",
    "onnx": "its Python backend, onnxruntime and tokenizers",
}


def launch_script(world: int, backend: str) -> str:
    """One process per rank, by mpirun when there are several (two servers need two prefixes)."""

    def rank(number: int, *flags: str) -> str:
        prefix = f"--backend-config=python,shm-region-prefix-name=ingot$$_{number}"
        words = [*COMMON, prefix, *flags]
        program = (
            'trtllm-llmapi-launch "$server"' if backend == "llmapi" and world > 1 else '"$server"'
        )
        return " \\\n    ".join([program, *words])

    head = HEAD.format(needs=NEEDS[backend], here=HERE)
    first = rank(0, *FIRST, '"$@"')
    if world == 1:
        return f"{head}exec {first}\n"
    ranks = [first, *(rank(number, '"$@"', *OTHER) for number in range(1, world))]
    listed = " : \\\n  ".join(f"-n 1 {words}" for words in ranks)
    return f"{head}exec ${{MPIRUN:-mpirun --allow-run-as-root --bind-to none}} \\\n  {listed}\n"


class Server(server.Server):
    """The server of `repository`; without `program`, nvidia-pytriton's, which needs no GPU."""

    health = "/v2/health/ready"

    def __init__(self, repository: Path, backends: Path | None = None, program: Path | None = None):
        super().__init__(repository)
        self.backends, self.program, self.grpc = backends, program, server.free_port()

    def __enter__(self) -> Self:
        self.scratch = tempfile.TemporaryDirectory()
        try:
            if not self.backends and not self.program:
                self.backends = python_backend(Path(self.scratch.name))
            return super().__enter__()
        except BaseException:
            self.scratch.cleanup()
            raise

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self.scratch.cleanup()
        # the Python backend's, which stays where the server had to be killed; serve is the server (exec)
        for path in Path("/dev/shm").glob(f"ingot{self.process.pid}_*"):
            path.unlink(missing_ok=True)

    def flags(self) -> list[str]:
        words = [f"--http-port={self.port}", f"--grpc-port={self.grpc}", "--allow-metrics=false"]
        if self.backends:
            words.append(f"--backend-directory={self.backends.resolve()}")
        return words

    def environment(self) -> dict[str, str]:
        found = dict(os.environ)
        if libraries := os.environ.get("INGOT_LIBRARY_PATH"):
            found["LD_LIBRARY_PATH"] = libraries
        if self.program:
            return {**found, "TRITONSERVER": str(self.program)}
        # Its python backend finds CUDA's stubs by the first, and numpy by the second.
        found["LD_LIBRARY_PATH"] = str(bundled().parent / "nvidia_pytriton.libs")
        found["PATH"] = f"{Path(sys.executable).parent}:{found.get('PATH', '')}"
        return {**found, "TRITONSERVER": str(bundled() / "tritonserver/bin/tritonserver")}

    def tail(self) -> str:
        """Its errors; the tables and the farewell after them say nothing."""
        lines = self.words().splitlines()
        errors = [line for line in lines if re.match(r"E\d{4} |error: ", line)]
        errors = [line for line in errors if "CudaDriverHelper" not in line]  # no GPU: harmless
        return "\n".join(errors[:5]) or super().tail()

    def version(self) -> str:
        with server.OPEN(f"{self.url}/v2", timeout=60) as answer:
            return json.load(answer)["version"]

    def models(self) -> dict[str, str]:
        """State of each model."""
        listed = json.loads(self.post("/v2/repository/index", {}))
        return {one["name"]: one.get("state", "UNKNOWN") for one in listed}

    def infer(self, model: str, body: dict) -> dict:
        return json.loads(self.post(f"/v2/models/{model}/generate", body))

    def stream(self, model: str, body: dict) -> list[dict]:
        """Each answer of a stream (server-sent events)."""
        lines = self.post(f"/v2/models/{model}/generate_stream", body).decode().splitlines()
        return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


def bundled() -> Path:
    """The package pytriton, which holds a server for CPUs."""
    found: Any = find_spec("pytriton")
    return Path(found.submodule_search_locations[0])


def python_backend(folder: Path) -> Path:
    """Backends for that server, in `folder`: its python backend, with the stub of this Python."""
    place, server_ = folder / "python", bundled() / "tritonserver"
    place.mkdir(parents=True)
    stubs = server_ / "python_backend_stubs" / f"3.{sys.version_info.minor}"
    for path in [*(server_ / "backends/python").iterdir(), *stubs.iterdir()]:
        if path.is_file():
            shutil.copy(path, place)
    return folder
