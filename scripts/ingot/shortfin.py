"""A shortfin server started from a bundle on 127.0.0.1, and stopped whatever happens."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

START_LIMIT = 300  # seconds: loading a large archive from a cold disk
ANSWER_LIMIT = 300  # seconds
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # loopback: no proxy


class Server:
    """The server of `bundle`, run by `python` (an interpreter of envs/iree), on a free port."""

    def __init__(self, bundle: Path, python: Path):
        self.bundle, self.python, self.port = bundle, python, free_port()

    def __enter__(self) -> Self:
        if not (self.bundle / "serve").is_file():
            sys.exit(f"{self.bundle}: no bundle of a server; build artifacts/M_tp1.shortfin first")
        command = [self.bundle.resolve() / "serve", f"--port={self.port}"]
        environment = {**os.environ, "PYTHON": str(self.python)}
        self.log = (self.bundle.parent / f".{self.bundle.name}.{os.getpid()}.log").open("w+")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        """Stop the whole group: SIGTERM first, which shuts it down cleanly."""
        for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
                try:
                    self.process.wait(patience)
                except subprocess.TimeoutExpired:
                    continue
        self.log.close()
        Path(self.log.name).unlink(missing_ok=True)

    def _wait(self) -> None:
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end:
            if self.process.poll() is not None:
                sys.exit(f"{self.bundle}: the server stopped at start:\n{self._tail()}")
            try:
                with OPEN(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{self.bundle}: no health after {START_LIMIT} s:\n{self._tail()}")

    def _tail(self) -> str:
        self.log.flush()
        return "\n".join(Path(self.log.name).read_text(errors="replace").splitlines()[-15:])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def generate(self, max_tokens: int = 50, **prompt) -> str:
        """The greedy continuation of `text="..."` or of `input_ids=[...]`."""
        body = {**prompt, "sampling_params": {"max_completion_tokens": max_tokens}}
        request = urllib.request.Request(
            f"{self.url}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with OPEN(request, timeout=ANSWER_LIMIT) as answer:
                return json.load(answer)["responses"][0]["responses"][0]["text"]
        except urllib.error.HTTPError as error:
            sys.exit(f"{self.url}/generate: HTTP {error.code}: {error.read().decode()[:300]}")
        except OSError as error:
            sys.exit(f"{self.bundle}: the server broke off ({error}):\n{self._tail()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
