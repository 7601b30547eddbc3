"""Tokens per second of each bundle beside its server alone: one request at a time, and eight at once.

    .venv/bin/python bench/serving.py [--only vllm-slurm ...] [--seconds 8] [--rounds 3] [--json]

Each pair is up together and measured in turns, idle and with two busy loops beside it; what counts is the
median of the rounds' ratios.  `alone` is vLLM's own command with the bundle's arguments, and for what Ingot
serves by ONNX Runtime and OpenVINO the same program without Ray and HTTP, of as many threads.  libllama and
ONNX Runtime GenAI read the same model, one request at a time, for comparison.  It runs in a network of its
own: Ray listens on every address.
"""

import argparse
import contextlib
import json
import os
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

import apart  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.rayserve.server import Server as RayServe  # noqa: E402
from ingot.serve import server  # noqa: E402
from ingot.vllm.server import Server as Vllm  # noqa: E402

ARTIFACTS = ROOT / "artifacts"
BUNDLES = {"vllm-slurm": "demo_tp1.vllm-slurm", "rayserve": "demo_tp1.rayserve"}
NEEDS = {  # artifacts, by what is measured
    "vllm-slurm": [BUNDLES["vllm-slurm"]],
    "rayserve": [*BUNDLES.values()],
    "single": ["demo.gguf", "demo.int8.onnx"],
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
from ingot.llamacpp import libllama
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

    def __init__(self, url: str, model: str, key: str = ""):
        self.url, self.model, self.key = url, model, key

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
def pairs(name: str) -> Iterator[list[tuple[str, str, object, object]]]:
    """(what serves, beside what, asking the one, asking the other), all up."""
    python = {one: toolchains.python(ROOT, one) for one in ("vllm", "rayserve", "onnx", "llamacpp")}
    with contextlib.ExitStack() as stack:
        if name == "single":
            programs = [
                Program(
                    python["llamacpp"],
                    "-c",
                    LLAMA,
                    ROOT / "scripts",
                    ARTIFACTS / "demo.gguf",
                    TOKENS,
                ),
                Program(python["onnx"], "-c", GENAI, ARTIFACTS / "demo.int8.onnx", TOKENS),
            ]
            for one in programs:
                stack.callback(one.close)
            yield [("libllama, f16", "GenAI, int8", *programs)]
            return
        bundle = ARTIFACTS / BUNDLES[name]
        vllm = ARTIFACTS / BUNDLES["vllm-slurm"]
        alone = stack.enter_context(Alone(vllm, python["vllm"]))
        plain = Http(alone.url, alone.about["model"])
        if name == "vllm-slurm":
            ours = stack.enter_context(Vllm(bundle, python["vllm"]))
            yield [("vllm-slurm", "vllm serve", Http(ours.url, ours.model, ours.key), plain)]
            return
        ours = stack.enter_context(RayServe(bundle, python["vllm"]))
        found = [("rayserve /", "vllm serve", Http(ours.url, "demo"), plain)]
        for served in yaml.safe_load((bundle / "serve.yaml").read_text())["applications"][1:]:
            args, actor = served["args"], served["deployments"][0]["ray_actor_options"]
            own = {"threads": actor["num_cpus"], "properties": args.get("properties", {}),
                   "batch": args["batch_size"]}  # fmt: skip
            engine, route = args["engine"], served["route_prefix"]
            words = (bundle / "parts", engine, bundle / engine, json.dumps(own), TOKENS)
            one = Program(python["rayserve"], "-B", "-c", ALONE, *words)
            stack.callback(one.close)
            ours_there = Http(ours.url + route, args["model"])
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


def measured(ours, theirs, count: int, busy: int, options: argparse.Namespace) -> list[float]:
    """Tokens per second of both, and the median ratio, by turns."""
    both: list[tuple[float, float]] = []
    with load(busy):
        for _ in range(options.rounds):
            both.append((rate(ours, count, options.seconds), rate(theirs, count, options.seconds)))
    rates = [statistics.median(one) for one in zip(*both, strict=True)]
    return [*rates, statistics.median(a / b for a, b in both)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=NEEDS, default=[*NEEDS])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--built", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.built:
        targets = [f"artifacts/{name}" for only in options.only for name in NEEDS[only]]
        subprocess.run([ROOT / ".venv/bin/snakemake", "--", *targets], cwd=ROOT, check=True)
        words = apart.words(sys.executable, __file__, *sys.argv[1:], "--built")
        os.execvp(words[0], words)
    for name in options.only:
        with pairs(name) as found:
            for ours, theirs, one, other in found:
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
