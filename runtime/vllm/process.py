"""vLLM, or Ray, as this node's child: started, listened to, and ended with all that it started and left."""

import contextlib
import re
import subprocess
import threading
import time
from pathlib import Path

from leftovers import Leftovers

SHARDS = re.compile(r"checkpoint shards:.*?(\d+)/(\d+)")
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
QUIET = re.compile(r"\b(INFO|WARNING|DEBUG)\b")
ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)\b.*|.*\bout of memory.*|vllm: error: .*)")


class Server:
    """The process, its words in `log`, and what they say of progress."""

    def __init__(
        self,
        name: str,
        words: list[str],
        environment: dict[str, str],
        log: Path,
        private: list[Path],
    ):
        self.name, self.log, self.error = name, log, ""
        self.shards, self.kv_tokens = (0, 0), 0  # files of weights: read, of how many
        self.left = Leftovers(private)
        self.process = subprocess.Popen(
            words, env={**environment, **self.left.environment}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()

    def _listen(self) -> None:
        with self.log.open("ab", buffering=0) as log:
            for line in iter(self.process.stdout.readline, b""):
                with contextlib.suppress(OSError):  # a full disk must not end the server
                    log.write(line)
                text = line.decode(errors="replace")
                if found := SHARDS.search(text):
                    self.shards = (int(found[1]), int(found[2]))
                if found := KV_TOKENS.search(text):
                    self.kv_tokens = int(found[1].replace(",", ""))
                if not self.error and not QUIET.search(text) and (found := ERROR.search(text)):
                    self.error = found[1].strip()[:300]  # the first: others follow from it

    def ended(self) -> str:
        """Why it ended; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        self.reader.join(2)
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return (
            f"{self.name} ended, {how}"
            + (f": {self.error}" if self.error else "")
            + f"; its words: {self.log}"
        )

    def forget(self) -> None:
        """It has answered: its shared memory needs no name any more, and what it said has hurt nobody."""
        self.left.unname()
        self.error = ""

    def stop(self, patience: float = 1) -> None:
        """SIGTERM to vLLM, which ends its own; then SIGKILL to what is left, and its shared memory goes.

        Without long patience: SLURM's own SIGKILL follows, which would leave the memory.
        """
        self.left.look()
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        end = time.monotonic() + patience
        while time.monotonic() < end and self.left.processes():
            self.process.poll()
            time.sleep(0.1)
        self.left.end(self.process.poll)
