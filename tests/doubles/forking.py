"""Scripts run many times in one interpreter that has imported what is slow to import: a fork per run.

Each run is the script by its path, with its own folder first on the path, as `python script.py` is;
only other people's packages were imported before, and none was used.
"""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

SLOW = (  # where a toolchain has them
    "numpy", "gguf.quants", "safetensors.numpy", "onnx", "onnxruntime", "torch", "iree.runtime",
    "sharktank.types", "openvino", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama",
)  # fmt: skip

SERVER = """
import importlib, json, os, runpy, signal, sys, traceback
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # not of this toolchain
print("ready", file=sys.stderr, flush=True)

def script(asked):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setsid()
    signal.alarm(asked["seconds"])
    os.chdir(asked["cwd"])
    if asked["environment"] is not None:
        os.environ.clear()
        os.environ.update(asked["environment"])
    sys.argv = asked["words"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 1 if isinstance(end.code, str) else int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        try:
            status = script(asked)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forking:
    """One interpreter of a toolchain; `run` is for one thread at a time."""

    def __init__(self, python: Path | str, slow: tuple[str, ...] = SLOW):
        self.folder = tempfile.TemporaryDirectory(prefix="forking")
        words = [str(python), "-c", SERVER, json.dumps(slow)]
        self.log = (Path(self.folder.name) / "log").open("w")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def run(
        self, script: Path, *words, seconds: int = 300, cwd: Path | str = ".", environment=None
    ) -> subprocess.CompletedProcess:
        """What `python script words` says; ended by SIGALRM after so many seconds."""
        said = {name: Path(self.folder.name) / name for name in ("stdout", "stderr")}
        asked = {name: str(path) for name, path in said.items()}
        asked |= {"words": [str(script), *map(str, words)], "seconds": seconds}
        asked |= {"cwd": str(cwd), "environment": environment}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        if not (status := self.process.stdout.readline()):
            raise RuntimeError(f"the forking interpreter ended: {Path(self.log.name).read_text()}")
        out, err = (path.read_text() for path in said.values())
        return subprocess.CompletedProcess(asked["words"], int(status), out, err)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
