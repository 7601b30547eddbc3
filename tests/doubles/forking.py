"""Scripts run many times in one interpreter that has imported what is slow to import: a fork per run.

Each run is the script by its path, with its own folder first on the path, as `python script.py` is;
only other people's packages were imported before, and none was used.  Processes that name one place
share the interpreter, which ends when none of them is connected any more.
"""

import fcntl
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
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
import atexit, contextlib, faulthandler, gc, importlib, json, os, runpy, selectors, signal, socket, sys
import threading, traceback
gc.disable()  # what is imported is no garbage
begun = os.dup(1)  # closed once it can be asked; some packages print while they are imported
os.dup2(2, 1)
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # whose thread a fork would not have
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # not of this toolchain
gc.enable()

def script(asked):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(asked["stdin"], os.O_RDONLY), 0)
    os.setsid()
    faulthandler.dump_traceback_later(max(asked["seconds"] - 1, 0.5), file=2)
    signal.alarm(asked["seconds"])
    os.chdir(asked["cwd"])
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
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.chdir(os.path.dirname(sys.argv[4]))
listening.bind(os.path.basename(sys.argv[4]))  # the whole may be longer than a socket's name
listening.listen(64)

def forked(asked):
    if child := os.fork():
        return child
    try:
        listening.close()  # else what a run leaves running would keep a caller waiting
        status = script(asked)
        if asked["ends"]:
            threading._shutdown()
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)

waiting, callers = selectors.DefaultSelector(), set()
waiting.register(listening, selectors.EVENT_READ)
os.close(begun)
while True:
    for key, _ in waiting.select(60):
        if key.fileobj is listening:
            caller = listening.accept()[0]
            callers.add(caller)
            waiting.register(caller, selectors.EVENT_READ)
        elif key.data:  # a run has ended
            child, caller = key.data
            waiting.unregister(key.fileobj)
            os.close(key.fileobj)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                caller.send(str(status).encode())
        elif said := key.fileobj.recv(4096):
            if said == b"here":
                key.fileobj.send(said)
            else:
                with open(said) as file:
                    child = forked(json.load(file))
                waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, key.fileobj))
        else:
            waiting.unregister(key.fileobj)
            callers.remove(key.fileobj)
            key.fileobj.close()
    if not callers:
        break
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
    """An interpreter of a toolchain; threads may run several scripts at once.

    `place`: the name of a socket, by which processes share the interpreter.
    """

    def __init__(self, python: Path | str, slow: tuple[str, ...] = SLOW, place: Path | None = None):
        self.folder = tempfile.TemporaryDirectory(prefix="forking")
        self.shared = place is not None
        self.place = place or Path(self.folder.name) / "interpreter"
        self.log = self.place.with_suffix(".log")
        self.runs = itertools.count()
        self.ends = slow is SNAKEMAKE  # torch's own end takes a second
        self.process: subprocess.Popen | None = None
        more = PARSED if slow is SNAKEMAKE else ""
        with self.place.with_suffix(".busy").open("w") as busy:
            fcntl.flock(busy, fcntl.LOCK_EX)
            try:
                self.here = self._connected()
            except OSError:
                self.place.unlink(missing_ok=True)
                words = [str(python), "-c", SERVER, json.dumps(slow), more, str(self.place.parent)]
                with self.log.open("w") as log:
                    self.process = process = subprocess.Popen(
                        [*words, str(self.place)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        stderr=log, start_new_session=True,
                    )  # fmt: skip
                if process.stdout:
                    process.stdout.read()  # until it is closed
                    process.stdout.close()
                self.here = self._connected()

    def _connected(self) -> socket.socket:
        """OSError where nobody answers."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(self.place.parent, os.O_PATH)
        try:
            found.connect(f"/proc/self/fd/{folder}/{self.place.name}")
            found.send(b"here")
            if not found.recv(9):
                raise ConnectionResetError(self.log)
        except OSError:
            found.close()
            raise
        finally:
            os.close(folder)
        return found

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
        number = next(self.runs)  # what one left running writes into no other's
        said = {
            name: Path(self.folder.name, f"{name}{number}")
            for name in ("stdin", "stdout", "stderr")
        }
        said["stdin"].write_text(given)
        asked = {name: str(path) for name, path in said.items()}
        asked |= {"words": [str(script), *map(str, words)], "seconds": seconds, "ends": self.ends}
        asked["cwd"] = str(Path(cwd).absolute())
        asked["environment"] = dict(os.environ) if environment is None else environment
        said["asked"] = Path(self.folder.name, f"asked{number}")
        said["asked"].write_text(json.dumps(asked))
        try:
            with self._connected() as interpreter:
                interpreter.send(os.fsencode(said["asked"]))
                status = interpreter.recv(9)
        except OSError:
            status = b""
        if not status:
            raise RuntimeError(f"the forking interpreter ended: {self.log.read_text()}")
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
        self.here.close()
        if self.process and not self.shared:
            self.process.wait(60)
        self.folder.cleanup()


class ForkingSnakemake:
    """The command `snakemake` of a .venv, whose import is 1.5 of the 1.7 CPU seconds of a run of nothing.

    A process of its own where Python's start would differ.
    """

    def __init__(self, command: Path, place: Path):
        self.command, self.before = command, dict(os.environ)
        self.interpreter = Forking(command.parent / "python", SNAKEMAKE, place)

    def run(
        self, *words, environment: dict[str, str], cwd, timeout: int
    ) -> subprocess.CompletedProcess:
        words = [str(word) for word in words]
        changed = dict(environment.items() ^ self.before.items())
        if any(map(AT_START.match, changed)) or any(map(PLUGINS.search, words)):
            return subprocess.run(
                [str(self.command), *words], cwd=cwd, env=environment, timeout=timeout,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        options = {"seconds": timeout, "cwd": cwd, "environment": environment}
        return self.interpreter.in_time(self.command, *words, **options)

    def close(self) -> None:
        self.interpreter.close()
