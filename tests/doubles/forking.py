"""Scripts run many times in one interpreter that has imported what is slow to import: a fork per run.

Each run is the script by its path, with its own folder first on the path, as `python script.py` is;
only other people's packages were imported before, and none was used.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

SLOW = (  # where a toolchain has them
    "numpy", "gguf.quants", "safetensors.numpy", "onnx", "onnxruntime", "torch", "iree.runtime",
    "sharktank.types", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama",
    "llmcompressor", "llmcompressor.modifiers.gptq",
)  # fmt: skip
# not huggingface_hub, which reads variables as it is imported
HUB = ("httpx2", "httpcore2", "truststore", "anyio.streams.tls", "yaml", "filelock", "tqdm.auto")
# no openvino: its import starts a thread, which a fork does not have

SNAKEMAKE = (  # what a run imports whatever its Snakefile says
    "snakemake.cli", "snakemake.workflow", "snakemake.dag", "snakemake.scheduling.job_scheduler",
    "snakemake.executors.local", "snakemake.executors.dryrun", "snakemake.executors.touch", "jsonschema",
    "snakemake.report.html_reporter", "smart_open.smart_open_lib", "yte", "requests", "numpy",
    "ingot.driver.commands.snakemake", "ingot.driver.snakemake.hook", "ingot.driver.catalogue.rules.inputs",
    "ingot.driver.catalogue.rules.engines", "ingot.driver.catalogue.rules.programs",
    "ingot.driver.snakemake.report", "ingot.driver.snakemake.cluster.jobs",
    "ingot.driver.cache.remote.remote",
)  # fmt: skip
AT_START = re.compile("PYTHON|HOME$|XDG_|LANG|LC_|TMPDIR|SNAKEMAKE")  # variables read by an import
PLUGINS = re.compile("slurm|kubernetes")  # words that its plugins read on the command line

SERVER = """
import atexit, faulthandler, gc, importlib, json, os, runpy, signal, sys, threading, traceback
gc.disable()  # what is imported is no garbage
answers = os.fdopen(os.dup(1), "w")  # some packages print while they are imported
os.dup2(2, 1)
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # whose thread a fork would not have
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # not of this toolchain
gc.enable()
print("ready", file=sys.stderr, flush=True)

def script(asked):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(asked["stdin"], os.O_RDONLY), 0)
    os.setsid()
    faulthandler.dump_traceback_later(max(asked["seconds"] - 1, 0.5), file=2)
    signal.alarm(asked["seconds"])
    os.chdir(asked["cwd"])
    if asked["environment"] is not None:
        os.environ.clear()
        os.environ.update(asked["environment"])
    sys.argv = asked["words"]
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            sys.path[0] = asked["cwd"]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(sys.argv[0])
            runpy.run_path(sys.argv[0], run_name="__main__")
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 1 if isinstance(end.code, str) else int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1

exec(sys.argv[2])
for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        try:
            status = script(asked)
            if asked["ends"]:
                threading._shutdown()
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
gc.freeze()  # as entry.py does
"""

# Snakemake's parser takes a fifth of a dry run, always for the same files: what it gave is kept for a text
PARSED = """
import hashlib, pickle, tempfile
import snakemake.cli, snakemake.workflow
snakemake.cli.get_argument_parser()  # finds the plugins
parser, folder = snakemake.workflow.parse, tempfile.mkdtemp(dir=sys.argv[3])

def parse(path, workflow, linemap, **options):
    name = path.get_path_or_uri(secret_free=True)
    try:
        with open(name, "rb") as file:
            key = hashlib.sha256(repr((name, file.read(), options)).encode()).hexdigest()
    except OSError:
        return parser(path, workflow, linemap, **options)  # which says so
    kept = os.path.join(folder, key)
    if not os.path.exists(kept):
        found = parser(path, workflow, linemap, **options)
        with open(f"{kept}.{os.getpid()}", "wb") as file:
            pickle.dump((found, dict(linemap)), file)
        os.replace(file.name, kept)
        return found
    with open(kept, "rb") as file:
        found, lines = pickle.load(file)
    linemap |= lines
    return found

snakemake.workflow.parse = parse
"""


class Forking:
    """One interpreter of a toolchain; `run` is for one thread at a time: who holds `free`."""

    def __init__(self, python: Path | str, slow: tuple[str, ...] = SLOW):
        self.folder = tempfile.TemporaryDirectory(prefix="forking")
        self.free = threading.Lock()
        self.runs, self.ends = 0, slow is SNAKEMAKE  # torch's own end takes a second
        more = PARSED if slow is SNAKEMAKE else ""
        words = [str(python), "-c", SERVER, json.dumps(slow), more, self.folder.name]
        self.log = (Path(self.folder.name) / "log").open("w")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def run(
        self,
        script: Path | str,
        *words,
        seconds: int = 300,
        cwd: Path | str = ".",
        environment=None,
        given="",
    ) -> subprocess.CompletedProcess:
        """What `python script words` says, or `python -m module words`, with `given` on its stdin; ended by
        SIGALRM after so many seconds."""
        self.runs += 1  # what one left running writes into no other's
        said = {
            name: Path(self.folder.name, f"{name}{self.runs}")
            for name in ("stdin", "stdout", "stderr")
        }
        said["stdin"].write_text(given)
        asked = {name: str(path) for name, path in said.items()}
        asked |= {"words": [str(script), *map(str, words)], "seconds": seconds, "ends": self.ends}
        asked |= {"cwd": str(cwd), "environment": environment}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        if not (status := self.process.stdout.readline()):
            raise RuntimeError(f"the forking interpreter ended: {Path(self.log.name).read_text()}")
        out, err = (said[name].read_text() for name in ("stdout", "stderr"))
        for path in said.values():
            path.unlink()
        return subprocess.CompletedProcess(asked["words"], int(status), out, err)

    def in_time(self, *words, seconds: int, **options) -> subprocess.CompletedProcess:
        """The same; an error where that was not enough, as subprocess.run's."""
        done = self.run(*words, seconds=seconds, **options)
        if done.returncode == -signal.SIGALRM:
            late = subprocess.TimeoutExpired(done.args, seconds, done.stdout, done.stderr)
            late.add_note(done.stderr[-5000:])  # where each of its threads was
            raise late
        return done

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()


class ForkingSnakemake:
    """The command `snakemake` of a .venv, whose import is 1.5 of the 1.7 CPU seconds of a run of nothing.

    A process of its own where Python's start would differ, or where one is running: threads may ask.
    """

    def __init__(self, command: Path):
        self.command, self.before = command, dict(os.environ)
        self.interpreter = Forking(command.parent / "python", SNAKEMAKE)

    def run(
        self, *words, environment: dict[str, str], cwd, timeout: int
    ) -> subprocess.CompletedProcess:
        words = [str(word) for word in words]
        changed = dict(environment.items() ^ self.before.items())
        alike = not any(map(AT_START.match, changed)) and not any(map(PLUGINS.search, words))
        if not alike or not self.interpreter.free.acquire(blocking=False):
            return subprocess.run(
                [str(self.command), *words], cwd=cwd, env=environment, timeout=timeout,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        try:
            options = {"seconds": timeout, "cwd": cwd, "environment": environment}
            return self.interpreter.in_time(self.command, *words, **options)
        finally:
            self.interpreter.free.release()

    def close(self) -> None:
        self.interpreter.close()
