"""vLLM as this node's child: started, listened to, and ended with all that it started and left.

Run as a program it is the reaper, which does the last when the node's own process was killed.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

MARK = "INGOT_SERVE_PART"  # in the environment of all that is ours on this node
SHM = "/dev/shm/"
SHARDS = re.compile(r"checkpoint shards:.*?(\d+)/(\d+)")
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)\b.*|.*\bout of memory.*|vllm: error: .*)")


class Server:
    """The process, its words in `log`, and what they say of progress."""

    def __init__(
        self, words: list[str], environment: dict[str, str], log: Path, private: list[Path]
    ):
        self.mark, self.log, self.error = os.urandom(8).hex(), log, ""
        self.shards, self.kv_tokens = (0, 0), 0  # files of weights: read, of how many
        self.left: set[str] = set()  # files in shared memory that its processes have mapped
        self.reaper = subprocess.Popen(
            [sys.executable, __file__, self.mark, *map(str, private)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.process = subprocess.Popen(
            words, env={**environment, MARK: self.mark}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()

    def _listen(self) -> None:
        with self.log.open("ab", buffering=0) as log:
            for line in iter(self.process.stdout.readline, b""):
                log.write(line)
                text = line.decode(errors="replace")
                if found := SHARDS.search(text):
                    self.shards = (int(found[1]), int(found[2]))
                if found := KV_TOKENS.search(text):
                    self.kv_tokens = int(found[1].replace(",", ""))
                if not self.error and (found := ERROR.search(text)):
                    self.error = found[1].strip()[:300]  # the first: others follow from it

    def ended(self) -> str:
        """Why it ended; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        self.reader.join(2)
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return (
            f"vLLM ended, {how}"
            + (f": {self.error}" if self.error else "")
            + f"; its words: {self.log}"
        )

    def look(self) -> None:
        """Note which files in shared memory are its own: a killed process leaves them."""
        for pid in parts(self.mark):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    place = line.partition(SHM)
                    if place[1] and not place[2].endswith(" (deleted)"):
                        self.left.add(SHM + place[2])

    def forget(self) -> None:
        """Take the names of its shared memory away, which all its parts have opened by now.

        Then nothing is left even when this process is killed, too.
        """
        self.look()
        self._unlink()

    def _unlink(self) -> None:
        for path in self.left:
            Path(path).unlink(missing_ok=True)
        self.left.clear()

    def stop(self, patience: float = 1) -> None:
        """SIGTERM to vLLM, which ends its own; then SIGKILL to what is left, and its shared memory goes.

        Without long patience: SLURM's own SIGKILL follows, which would leave the memory.
        """
        self.look()
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        end = time.monotonic() + patience
        while time.monotonic() < end and parts(self.mark):
            self.process.poll()
            time.sleep(0.1)
        kill(self.mark, self.process.poll)
        self._unlink()
        self.reaper.communicate(b"done")


def parts(mark: str) -> list[int]:
    """The processes of one server, whatever became of their parents."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def kill(mark: str, reap=lambda: None) -> None:
    for _ in range(20):
        for pid in (left := parts(mark)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not left:
            break
        time.sleep(0.1)


def main(mark: str, *private: str) -> None:
    """The reaper: wait until the node's process has ended, by whatever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdin.buffer.read() != b"done":
        kill(mark)
        for path in private:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                Path(path).unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
