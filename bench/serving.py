"""Tokens per second of each bundle beside its server alone: one request at a time, and eight at once.

    .venv/bin/python bench/serving.py [--only vllm-slurm ...] [--route /] [--layers 6] [--seconds 8]

The model is the demo: 12 MB, whose tokens cost no more than their way through HTTP; with --layers a random
Llama of so many layers, 58 million parameters each.  A pair is up together and measured in turns, idle
and with two busy loops beside it, while the other's vLLM is halted, since it spins when it is idle; what
counts is the median of three rounds' ratios.  `alone` is vLLM's own command with the bundle's arguments,
and for what Ingot serves by ONNX Runtime and OpenVINO the same program without Ray and HTTP, of as many
threads.  libllama and ONNX Runtime GenAI read the same model, one request at a time, for comparison.  It
runs in a network of its own: Ray listens on every address.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/doubles")]

import yaml  # noqa: E402
from convert import make_checkpoint  # noqa: E402

import apart  # noqa: E402
from ingot.base import server  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.serving.rayserve.server import Server as RayServe  # noqa: E402
from ingot.serving.vllm.server import Server as Vllm  # noqa: E402

BUNDLES = {"vllm-slurm": "M_tp1.vllm-slurm", "rayserve": "M_tp1.rayserve"}
NEEDS = {  # artifacts of a model M, by what is measured
    "vllm-slurm": [BUNDLES["vllm-slurm"]],
    "rayserve": [*BUNDLES.values()],
    "single": ["M.gguf", "M.int8.onnx"],
}
PROMPT = [1018, 83, 97, 110, 32]
TOKENS = 64
BUSY = "while True: pass"

# What answers lines of numbers on its standard input, by `size` requests at once
ALONE = """
import json, queue, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from batching import Asked, Batch
from decoder import RUNTIMES
engine, folder, own, count = sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5])
batch = Batch(RUNTIMES[engine](folder, own["threads"], own["properties"]), own["batch"])
print("ready", flush=True)
for line in sys.stdin:
    told = [queue.Queue() for _ in range(int(line))]
    for one in told:
        batch.add(Asked([1018, 83, 97, 110, 32], count), one.put)
    for one in told:
        while not isinstance(one.get(), str):
            pass
    print("done", flush=True)
"""
LLAMA = """
import ctypes, sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from ingot.formats.gguf import libllama
one = libllama.Llama(Path(sys.argv[2]), 512)
one.lib.llama_batch_get_one.restype = libllama.Batch
def step(ids):
    kept = (ctypes.c_int32 * len(ids))(*ids)
    batch = one.lib.llama_batch_get_one(kept, len(ids))
    assert one.lib.llama_decode(one.context, batch) == 0
    found = one.lib.llama_get_logits_ith(one.context, -1)
    return int(libllama.np.ctypeslib.as_array(found, (one.tokens,)).argmax())
one.lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
print("ready", flush=True)
for line in sys.stdin:
    memory = ctypes.c_void_p(one.lib.llama_get_memory(one.context))
    one.lib.llama_memory_clear(memory, ctypes.c_bool(True))
    token = step([1018, 83, 97, 110, 32])
    for _ in range(int(sys.argv[3]) - 1):
        token = step([token])
    print("done", flush=True)
"""
GENAI = """
import sys
import onnxruntime_genai as og
model = og.Model(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    asked = og.GeneratorParams(model)
    most = 5 + int(sys.argv[2])
    asked.set_search_options(max_length=most, min_length=most, do_sample=False)
    found = og.Generator(model, asked)
    found.append_tokens([1018, 83, 97, 110, 32])
    for _ in range(int(sys.argv[2])):
        found.generate_next_token()
    print("done", flush=True)
"""


class Program:
    """A program that answers each line of its input; one line is so many requests at once."""

    def __init__(self, *words: str | Path):
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._until("ready")

    def ask(self, count: int) -> None:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        self._until("done")

    def _until(self, word: str) -> None:
        for line in self.process.stdout:
            if line.strip() == word:
                return
        sys.exit(f"error: {self.process.args[0]}: ended, expected '{word}'")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)


class Http:
    """An OpenAI server's completions below `url`; as many threads as requests at once."""

    def __init__(self, server: server.Server, model: str, route: str = "", key: str = ""):
        self.url, self.model, self.key = server.url + route, model, key
        self.pid = server.process.pid

    def _one(self) -> None:
        body = {
            "model": self.model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True,
        }  # fmt: skip
        request = server.urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"},
        )  # fmt: skip
        with server.OPEN(request, timeout=300) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == TOKENS

    def ask(self, count: int) -> None:
        threads = [threading.Thread(target=self._one) for _ in range(count)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()


class Alone(server.Server):
    """`vllm serve` with a bundle's model and arguments, as a user types it."""

    def __init__(self, bundle: Path, python: Path):
        super().__init__(bundle)
        self.about = json.loads((bundle / "bundle.json").read_bytes())
        self.python, self.scratch = python, tempfile.TemporaryDirectory()
        own = self.about["environment"]
        kept = {
            name: own[name] for name in own if not name.endswith(("THREADS_BIND", "NUM_THREADS"))
        }
        words = [
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            bundle / "model",
            *self.about["arguments"],
        ]
        self.folder = Path(self.scratch.name, "alone")
        self.folder.mkdir()
        script = self.folder / "serve"
        quoted = " ".join(f"'{word}'" for word in (python, *words, "--host", "127.0.0.1"))
        script.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
        script.chmod(0o755)
        self.own = {**os.environ, **kept, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

    def environment(self) -> dict[str, str]:
        return self.own


@contextlib.contextmanager
def pairs(name: str, folder: Path) -> Iterator[list[tuple[str, str, object, object]]]:
    """(what serves, beside what, asking the one, asking the other), all up, built in `folder`."""
    model = "random" if (folder / "random.yaml").exists() else "demo"
    place = {
        one: folder / "artifacts" / one.replace("M", model, 1)
        for only in NEEDS
        for one in NEEDS[only]
    }
    python = {one: toolchains.python(ROOT, one) for one in ("vllm", "rayserve", "onnx", "llamacpp")}
    with contextlib.ExitStack() as stack:
        if name == "single":
            programs = [
                Program(
                    python["llamacpp"],
                    "-c",
                    LLAMA,
                    ROOT / "scripts",
                    place["M.gguf"],
                    TOKENS,
                ),
                Program(python["onnx"], "-c", GENAI, place["M.int8.onnx"], TOKENS),
            ]
            for one in programs:
                stack.callback(one.close)
            yield [("libllama, f16", "GenAI, int8", *programs)]
            return
        bundle, vllm = place[BUNDLES[name]], place[BUNDLES["vllm-slurm"]]
        alone = stack.enter_context(Alone(vllm, python["vllm"]))
        plain = Http(alone, alone.about["model"])
        if name == "vllm-slurm":
            ours = stack.enter_context(Vllm(bundle, python["vllm"]))
            yield [("vllm-slurm", "vllm serve", Http(ours, ours.model, key=ours.key), plain)]
            return
        ours = stack.enter_context(RayServe(bundle, python["vllm"]))
        found = [("rayserve /", "vllm serve", Http(ours, model), plain)]
        for served in yaml.safe_load((bundle / "serve.yaml").read_text())["applications"][1:]:
            args, actor = served["args"], served["deployments"][0]["ray_actor_options"]
            own = {"threads": actor["num_cpus"], "properties": args.get("properties", {}),
                   "batch": args["batch_size"]}  # fmt: skip
            engine, route = args["engine"], served["route_prefix"]
            words = (bundle / "parts", engine, bundle / engine, json.dumps(own), TOKENS)
            one = Program(python["rayserve"], "-B", "-c", ALONE, *words)
            stack.callback(one.close)
            ours_there = Http(ours, args["model"], route)
            found.append((f"rayserve {route}", f"{engine} without Ray", ours_there, one))
        yield found


def rate(asking, count: int, seconds: float) -> float:
    """Tokens per second of `count` requests at once, again and again."""
    asking.ask(count)
    began, asked = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        asking.ask(count)
        asked += count
    return asked * TOKENS / (time.monotonic() - began)


@contextlib.contextmanager
def load(busy: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def below(server: object) -> list[int]:
    """vLLM's own processes of a server of this network; none of what is no server."""
    if not isinstance(server, Http):
        return []
    own, found, parents = Path("/proc/self/ns/net").readlink(), [], {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(place.name)
            parents[pid] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if (place / "ns/net").readlink() == own and "VLLM::" in (place / "cmdline").read_text():
                found.append(pid)

    def under(pid: int) -> bool:
        return pid == server.pid or (pid in parents and under(parents[pid]))

    return [pid for pid in found if under(pid)]


@contextlib.contextmanager
def halted(server: object) -> Iterator[None]:
    """An idle vLLM spins on its cores: whoever is measured beside it has them alone."""
    pids = below(server)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def measured(ours, theirs, count: int, busy: int, options: argparse.Namespace) -> list[float]:
    """Tokens per second of both, and the median ratio, by turns."""
    both: list[tuple[float, float]] = []
    with load(busy):
        for _ in range(options.rounds):
            with halted(theirs):
                one = rate(ours, count, options.seconds)
            with halted(ours):
                both.append((one, rate(theirs, count, options.seconds)))
    rates = [statistics.median(one) for one in zip(*both, strict=True)]
    return [*rates, statistics.median(a / b for a, b in both)]


def built(folder: Path, only: list[str], layers: int) -> None:
    """Build what is measured below `folder`: of the demo, or of a random model of so many layers."""
    model, words, environment = "demo", [], dict(os.environ)
    if layers:
        model, words = "random", ["--configfile", folder / "random.yaml"]
        environment["INGOT_STORE"] = str(folder / "store")
        make_checkpoint(folder / model, layers)
        demo = yaml.safe_load((ROOT / "models.yaml").read_text())["models"]["demo"]
        kept = {
            key: demo[key] for key in ("architecture", "pre_tokenizer", "tp", "hardware", "ray")
        }
        own = {
            "path": str(folder / model),
            "name": "Random",
            **kept,
            "vllm": demo["vllm"]
            | {"kv_cache_bytes": 1 << 28, "max_model_len": 512, "smoke": "generated"},
        }
        Path(words[-1]).write_text(json.dumps({"models": {model: own}}))
    targets = [f"artifacts/{one.replace('M', model, 1)}" for name in only for one in NEEDS[name]]
    command = [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", *words, "--", *targets]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=NEEDS, default=[*NEEDS])
    parser.add_argument("--route", help="of rayserve: /, /cpu or /acpu alone")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.built:
        with tempfile.TemporaryDirectory(prefix="serving-") as temporary:
            folder = Path(temporary) if options.layers else ROOT
            built(folder, options.only, options.layers)
            words = apart.words(sys.executable, __file__, *sys.argv[1:], "--built", folder)
            sys.exit(subprocess.run(words, check=False).returncode)
    for name in options.only:
        with pairs(name, options.built) as found:
            for ours, theirs, one, other in found:
                if options.route and not ours.endswith(f" {options.route}"):
                    continue
                for count in (1, 8) if name != "single" else (1,):
                    for busy in (0, 2):
                        rates = measured(one, other, count, busy, options)
                        row = {"bundle": ours, "alone": theirs, "at_once": count, "busy_loops": busy,
                               "tokens_s": round(rates[0], 1), "alone_tokens_s": round(rates[1], 1),
                               "ratio": round(rates[2], 3)}  # fmt: skip
                        said = "{bundle:14} {at_once} at once, {busy_loops} busy: {tokens_s:8} tokens/s, "
                        said += "{alone} {alone_tokens_s:8}: {ratio:.3f} x"
                        print(json.dumps(row) if options.json else said.format(**row), flush=True)


if __name__ == "__main__":
    main()
