"""A server of vLLM started from a bundle, on this machine."""

import json
import os
import tempfile
from pathlib import Path

from ingot.base import server


class Server(server.Server):
    """The server of `bundle`, run by `python` (an interpreter of envs/vllm), on a free port."""

    def __init__(self, bundle: Path, python: Path):
        super().__init__(bundle)
        self.python = python
        self.state = tempfile.TemporaryDirectory()
        self.key = "verification"
        self.model = json.loads((bundle / "bundle.json").read_bytes())["model"]

    def environment(self) -> dict[str, str]:
        alone = {name: word for name, word in os.environ.items() if not name.startswith("SLURM_")}
        return {
            **alone, "PYTHON": str(self.python), "INGOT_SERVE_KEY": self.key,
            "XDG_STATE_HOME": self.state.name, "XDG_CONFIG_HOME": self.state.name,
        }  # fmt: skip

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def generate(
        self, prompt: list[int], count: int, model: str = ""
    ) -> tuple[list[int], list[float]]:
        """Greedy tokens, and the log-probability of each; of an adapter by its name as `model`."""
        body = {
            "model": model or self.model, "prompt": prompt, "max_tokens": count, "temperature": 0,
            "logprobs": 0, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        found = json.loads(self.post("/v1/completions", body))["choices"][0]
        return found["token_ids"], found["logprobs"]["token_logprobs"]
