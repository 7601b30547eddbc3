"""A shortfin server started from a bundle."""

import json
import os
from pathlib import Path

from ingot.base import server


class Server(server.Server):
    """The server of `bundle`, run by `python` (an interpreter of envs/iree), on a free port."""

    idle_limit = 120.0  # seconds: one start in some dozens waits for an event of its own, for ever

    def __init__(self, bundle: Path, python: Path):
        super().__init__(bundle)
        self.python = python

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHON": str(self.python)}

    def generate(self, max_tokens: int = 50, **prompt) -> str:
        """The greedy continuation of `text="..."` or of `input_ids=[...]`."""
        body = {**prompt, "sampling_params": {"max_completion_tokens": max_tokens}}
        answer = json.loads(self.post("/generate", body))
        return answer["responses"][0]["responses"][0]["text"]
