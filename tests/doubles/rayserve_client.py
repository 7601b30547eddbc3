"""Start a bundle's ./serve, use it as its users do, kill a replica, end it; prints what was seen.

    <python of envs/rayserve> rayserve_client.py BUNDLE

It has a network of its own (`unshare --net`): Ray listens on every address there is.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 18000
URL = f"http://127.0.0.1:{PORT}"
READY, BACK = 300, 120  # seconds
BUNDLE = Path(sys.argv[1])
KNOWN = {
    one["route"]: one for one in json.loads((BUNDLE / "smoke.json").read_bytes())["applications"]
}
CHAT = [{"role": "user", "content": "What is the capital of the United States?"}]
CASES = {  # name: route, path, body; all greedy
    "text": ("/cpu", "/v1/completions", {"prompt": "San Francisco is a", "max_tokens": 12}),
    "chat": ("/acpu", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 12}),
    "stop": ("/cpu", "/v1/chat/completions", {"messages": CHAT, "stop": "D.C", "max_tokens": 12}),
    "parts": ("/acpu", "/v1/chat/completions",
              {"messages": [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}],
               "max_tokens": 12}),
    "scores": ("/acpu", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "logprobs": True}),
    "unknown": ("/cpu", "/v1/completions", {"prompt": "a", "temperatur": 0}),
    "type": ("/cpu", "/v1/completions", {"prompt": "a", "max_tokens": "9"}),
    "bound": ("/cpu", "/v1/completions", {"prompt": "a", "max_tokens": 0}),
    "long": ("/cpu", "/v1/completions", {"prompt": "a", "max_tokens": 9999}),
    "longer": ("/cpu", "/v1/completions", {"prompt": [5] * 600}),
    "tokens": ("/cpu", "/v1/completions", {"prompt": [5, 99999]}),
    "other": ("/cpu", "/v1/completions", {"prompt": "a", "model": "llama"}),
    "several": ("/cpu", "/v1/completions", {"prompt": ["a", "b"]}),
    "n": ("/cpu", "/v1/completions", {"prompt": "a", "n": 2}),
    "penalty": ("/cpu", "/v1/completions", {"prompt": "a", "presence_penalty": 0.5}),
    "picture": ("/cpu", "/v1/chat/completions",
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    "list": ("/cpu", "/v1/completions", [1]),
    "surrogate": ("/cpu", "/v1/completions", {"prompt": "\ud800"}),
    "field": ("/cpu", "/v1/completions", {"prompt": "a", "\ud800": 1}),
    "hot": ("/cpu", "/v1/completions", {"prompt": "a", "temperature": 10**400}),
    "usage": ("/cpu", "/v1/completions", {"prompt": "a", "stream_options": {"include_usage": "no"}}),
    "zero": ("/cpu", "/v1/completions", {"prompt": "a", "n": 0}),
    "wordless": ("/cpu", "/v1/chat/completions",
                 {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}),
    "vast": ("/cpu", "/v1/completions", {"prompt": "a" * 40_000}),
    "odd": ("/cpu", "/tokenize", [1]),
    "wide": ("/cpu", "/tokenize", {"prompt": "a" * 40_000}),
    "bloated": ("/cpu", "/tokenize", {"prompt": "a" * 20_000_000}),
    "stuffed": ("/acpu", "/v1/chat/completions", {"messages": CHAT, "user": "a" * 20_000_000}),
    "asked": ("/acpu", "/v1/chat/completions",
              {"messages": CHAT, "tool_choice": "none", "metadata": {}, "n": 1, "max_tokens": 2}),
}  # fmt: skip


def post(path, body, seconds=60):
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def greedy(route, number, **more):
    case = KNOWN[route]["cases"][number % len(KNOWN[route]["cases"])]
    body = {
        "prompt": case["prompt"], "max_tokens": len(case["tokens"]), "temperature": 0, "logprobs": 0,
        "ignore_eos": True, "return_token_ids": True, **more,
    }  # fmt: skip
    return case["tokens"], post(f"{route}/v1/completions", body)


class Asking(threading.Thread):
    """Asks without end; counts answers that are right, wrong, and none."""

    def __init__(self, route, stop):
        super().__init__()
        self.route, self.stop = route, stop
        self.right = self.wrong = self.failed = 0

    def run(self):
        number = 0
        while not self.stop.is_set():
            number += 1
            try:
                tokens, (status, text) = greedy(self.route, number)
                if status != 200:
                    self.failed += 1
                elif json.loads(text)["choices"][0]["token_ids"] == tokens:
                    self.right += 1
                else:
                    self.wrong += 1
            except (OSError, http.client.HTTPException, ValueError):
                self.failed += 1


def ours():
    """The processes in this network, and how each is called: another test may run the same."""
    own = Path("/proc/self/ns/net").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/net").readlink() == own and int(path.name) != os.getpid():
                yield int(path.name), (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue


def replicas(name):
    """The processes of an application's replicas, which Ray names."""
    return [pid for pid, called in ours() if called.startswith(f"ray::ServeReplica:{name}:")]


def given_up():
    """A stream whose reader leaves after its first words; how many requests still run then is not seen."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    body = {"prompt": "a", "max_tokens": 400, "stream": True, "ignore_eos": True}
    connection.request("POST", "/cpu/v1/completions", json.dumps(body))
    connection.getresponse().read(10)
    connection.close()


def usual():
    found = {}
    for name, (route, path, body) in CASES.items():
        if isinstance(body, dict):
            body = {"temperature": 0, **body}
        found[name] = post(route + path, body)
    deep = urllib.request.Request(URL + "/cpu/v1/completions", b"[" * 100_000)
    try:
        urllib.request.urlopen(deep, timeout=60)
    except urllib.error.HTTPError as error:
        found["deep"] = error.code, error.read().decode()
    found["guide"] = post("/acpu", {"prompt": "San Francisco is a", "temperature": 0})
    seeded = {"prompt": "a", "seed": 5, "temperature": 2, "max_tokens": 20, "ignore_eos": True}
    both = [post("/acpu/v1/completions", seeded)[1] for _ in range(2)]
    found["seeded"] = [json.loads(one)["choices"][0]["text"] for one in both]
    stream = {"messages": CHAT, "temperature": 0, "max_tokens": 12, "stream": True}
    found["stream"] = post(
        "/acpu/v1/chat/completions", {**stream, "stream_options": {"include_usage": True}}
    )
    for _ in range(6):
        given_up()
    found["after"] = post("/cpu/v1/completions", {"prompt": "a", "max_tokens": 2})[0]
    with urllib.request.urlopen(f"{URL}/cpu/v1/models", timeout=60) as answer:
        found["models"] = json.load(answer)
    return found


def killed():
    """One of two replicas is killed while requests come; seconds until there are two again."""
    stop = threading.Event()
    askers = [Asking("/cpu", stop) for _ in range(4)]
    for one in askers:
        one.start()
    time.sleep(2)
    before, began = replicas("demo-cpu"), time.monotonic()
    os.kill(before[0], signal.SIGKILL)
    while time.monotonic() - began < BACK:
        now = replicas("demo-cpu")
        if before[0] not in now and len(now) == len(before):
            break
        time.sleep(0.2)
    back = time.monotonic() - began
    time.sleep(3)
    stop.set()
    for one in askers:
        one.join(120)
    return {
        "replicas": len(before), "back": round(back, 1), "right": sum(one.right for one in askers),
        "wrong": sum(one.wrong for one in askers), "failed": sum(one.failed for one in askers),
    }  # fmt: skip


def left():
    """Processes of Ray in this network, and files."""
    found = [called[:40] for _, called in ours() if "ray" in called[:40]]
    return found + [str(path) for path in Path(os.environ["TMPDIR"]).glob("ingot-ray-*")]


def main():
    server = subprocess.Popen(
        [BUNDLE / "serve", "--port", str(PORT)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(server.stdout), daemon=True)
    reader.start()
    found = {"said": said}
    try:
        end = time.monotonic() + READY
        while not any("ready after" in line for line in said) and server.poll() is None:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        if any("ready after" in line for line in said):
            found |= {"usual": usual(), "killed": killed()}
    finally:
        server.terminate()
        try:
            found["status"] = server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
    reader.join(5)
    time.sleep(1)
    found["left"] = left()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
