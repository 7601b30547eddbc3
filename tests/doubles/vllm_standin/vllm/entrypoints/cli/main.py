"""Stands in for `vllm serve` where a test ends it: loads, answers what smoke.json knows.

As the real one: a child holds shared memory that a killed process leaves; /health is 200 before anything
was generated; a server that dies answers 500 first.  STANDIN is JSON: seconds to load, and what goes wrong.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path

SAID = json.loads(os.environ.get("STANDIN", "{}"))
WORDS = sys.argv
KNOWN = json.loads((Path(WORDS[2]).parent / "smoke.json").read_bytes())


def option(name: str, default: str = "") -> str:
    return WORDS[WORDS.index(name) + 1] if name in WORDS else default


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return self.answer(401, {"error": "Unauthorized"})
        if SAID.get("fault") == "first completion":
            self.answer(500, {"error": "EngineCore encountered an issue."})
            print("AssertionError: self.intermediate_tensors", flush=True)
            os._exit(1)
        if isinstance(body["prompt"], str):
            scores = [-0.5] * body["max_tokens"] if SAID.get("fault") != "silent" else []
            said = {"token_ids": [5] * len(scores), "logprobs": {"token_logprobs": scores}}
            return self.answer(200, {"choices": [said]})
        case = next(one for one in KNOWN["cases"] if one["prompt"] == body["prompt"])
        tokens = (
            [1 + token for token in case["tokens"]]
            if SAID.get("fault") == "wrong"
            else case["tokens"]
        )
        scores = {"token_logprobs": case["logprobs"]}
        return self.answer(200, {"choices": [{"token_ids": tokens, "logprobs": scores}]})

    def answer(self, code: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


def ranks_by_ray() -> list:
    """One actor per GPU, where Ray puts it, as vLLM's executor does; each says where it is."""
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")

    @ray.remote(num_gpus=1, num_cpus=0)
    class Rank:
        def place(self) -> dict:
            own = ray.get_runtime_context().get_node_id()
            return {"node": own, "host": os.environ["VLLM_HOST_IP"]}

    count = int(option("--tensor-parallel-size")) * int(option("--pipeline-parallel-size"))
    placed = Rank.options(scheduling_strategy="SPREAD")  # ty: ignore[missing-attribute]
    found = [placed.remote() for _ in range(count)]
    print("RANKS" + json.dumps(ray.get([one.place.remote() for one in found], timeout=120)))
    return found


def main() -> None:
    held = ranks_by_ray() if option("--distributed-executor-backend") == "ray" else []
    name = f"ingot_{Path(os.environ['TMPDIR']).parent.name}_{option('--node-rank', '0')}"
    memory = shared_memory.SharedMemory(name, create=True, size=1 << 20)
    if not held and not os.fork():
        time.sleep(600)  # the worker, which holds the memory
        os._exit(0)
    rank = int(option("--node-rank", "0"))
    if SAID.get("fault") == "load" and rank == SAID.get("rank", 0):
        print("ValueError: the weights are not of this model", flush=True)
        memory.close()
        os._exit(1)
    for step in range(1, 5):
        time.sleep(SAID.get("load", 0) / 4)
        print(
            f"Loading safetensors checkpoint shards: {25 * step}% Completed | {step}/4", flush=True
        )
    kv = json.loads((Path(WORDS[2]).parent / "bundle.json").read_bytes())["kv_tokens"]
    print(f"CPU KV cache size: {kv + SAID.get('kv', 0):,} tokens", flush=True)
    if "--headless" in WORDS:
        time.sleep(600)
        return
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
