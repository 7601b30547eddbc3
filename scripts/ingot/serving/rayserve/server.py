"""Ray Serve started from a bundle, on this machine."""

import json
import os
import time
from pathlib import Path

from ingot.base import server
from ingot.base.refused import Refused


class Server(server.Server):
    """The applications of `bundle`, run by `python` (an interpreter of envs/vllm), on a free port."""

    def __init__(self, bundle: Path, python: Path):
        super().__init__(bundle)
        self.python = python

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHON": str(self.python)}

    def _wait(self) -> None:
        """Until each application has said what its smoke.json knows."""
        end = time.monotonic() + server.START_LIMIT
        while "ready after" not in self.words():
            if time.monotonic() > end or self.process.poll() is not None:
                raise Refused(f"{self.folder}: not ready by its own smoke test:", self.tail())
            time.sleep(0.2)

    def generate(
        self, route: str, model: str, prompt: list[int] | str, count: int, **more
    ) -> tuple[list[int], list[float], str]:
        """Greedy tokens, the log-probability of each, and their text."""
        body = {
            "model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0,
            "ignore_eos": True, "return_token_ids": True, **more,
        }  # fmt: skip
        found = json.loads(self.post(f"{route}/v1/completions", body))["choices"][0]
        return found["token_ids"], found["logprobs"]["token_logprobs"], found["text"]

    def streamed(self, route: str, model: str, prompt: list[int], count: int) -> str:
        """The same text, as a stream gives it."""
        body = {
            "model": model, "prompt": prompt, "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        events = self.post(f"{route}/v1/completions", body).decode().split("\n\n")
        said = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
        if said[-1:] != ["[DONE]"]:
            raise Refused(f"{self.url}{route}: a stream without its end, expected [DONE]")
        return "".join(json.loads(one)["choices"][0]["text"] for one in said[:-1])
