"""Ask the server what smoke.json knows the answer to: tokens, and their log-probabilities.

python3 asking.py http://127.0.0.1:8000        # the key, where one is needed, in OPENAI_API_KEY
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from place import FOLDER, Refused

TOKENS = 7  # of a text whose answer is not known
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def healthy(url: str) -> bool:
    try:
        with OPEN(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def post(url: str, key: str, path: str, body: dict, seconds: float = 300) -> dict:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    try:
        with OPEN(request, timeout=seconds) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise Refused(f"{url}{path}: HTTP {error.code}: {said}") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{url}{path}: {error}, expected an answer") from None


def generated(
    url: str, key: str, model: str, prompt: list[int] | str, count: int
) -> tuple[list, list]:
    """Greedy tokens, and the log-probability of each."""
    body = {
        "model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    found = post(url, key, "/v1/completions", body)["choices"][0]
    return found["token_ids"], found["logprobs"]["token_logprobs"]


def smoke(url: str, key: str, known: dict) -> str:
    """One phrase on what was right; refused when a token is wrong, or its log-probability too far away.

    Without known tokens it is enough that there are some, with log-probabilities that are numbers.
    """
    began, largest, count = time.monotonic(), 0.0, 0
    for text in known.get("texts", ()):
        tokens, scores = generated(url, key, known["model"], text, TOKENS)
        if len(tokens) != TOKENS or not all(isinstance(s, float) and s <= 0 for s in scores):
            raise Refused(f"{url}: {tokens} with {scores} after {text!r}, expected {TOKENS} tokens")
        count += len(tokens)
    for case in known["cases"]:
        tokens, scores = generated(url, key, known["model"], case["prompt"], len(case["tokens"]))
        if tokens != case["tokens"]:
            raise Refused(
                f"{url}: the model says {tokens}, expected {case['tokens']}: wrong weights"
            )
        away = max(abs(one - other) for one, other in zip(scores, case["logprobs"], strict=True))
        if not away <= known["tolerance"]:
            limit = known["tolerance"]
            raise Refused(
                f"{url}: a log-probability is off by {away:.3g}, expected at most {limit:g}"
            )
        largest, count = max(largest, away), count + len(tokens)
    seconds = time.monotonic() - began
    if not known["cases"]:
        return f"{count} tokens generated, checked against no reference, in {seconds:.1f} s"
    return f"{count} tokens are the reference's, log-probabilities within {largest:.2g}, in {seconds:.1f} s"


def each(url: str, key: str, known: dict) -> Iterator[str]:
    """One line per application, and per adapter, where there are several."""
    for one in known.get("applications", ()):
        yield f"{one['route']}: {smoke(url + one['route'].rstrip('/'), key, one)}"
    if "applications" not in known:
        yield smoke(url, key, known)
    for one in known.get("adapters", ()):
        yield f"{one['model']}: {smoke(url, key, one)}"


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1].startswith("http"):
        print("usage: ./smoke http://HOST:PORT", file=sys.stderr)
        return 2
    try:
        known = json.loads((FOLDER / "smoke.json").read_bytes())
        for line in each(sys.argv[1].rstrip("/"), os.environ.get("OPENAI_API_KEY", ""), known):
            print(line)
    except (Refused, OSError, KeyError, TypeError, http.client.HTTPException) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
