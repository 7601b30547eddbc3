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

DONE = "done"
MARK = "INGOT_SERVE_PART"  # in the environment of all that is ours on this node
SHM = "/dev/shm/"
SHARDS = re.compile(r"checkpoint shards:.*?(\d+)/(\d+)")
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
QUIET = re.compile(r"\b(INFO|WARNING|DEBUG)\b")
ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)\b.*|.*\bout of memory.*|vllm: error: .*)")


class Server:
    """The process, its words in `log`, and what they say of progress."""

    def __init__(
        self, words: list[str], environment: dict[str, str], log: Path, private: list[Path]
    ):
        self.mark, self.log, self.error = os.urandom(8).hex(), log, ""
        self.shards, self.kv_tokens = (0, 0), 0  # files of weights: read, of how many
        self.looked, self.unnamed = 0.0, False
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
            f"vLLM ended, {how}"
            + (f": {self.error}" if self.error else "")
            + f"; its words: {self.log}"
        )

    def look(self, every: float = 0) -> None:
        """Note which files in shared memory are its own: a killed process leaves them."""
        if self.unnamed or time.monotonic() - self.looked < every:
            return
        self.looked = time.monotonic()
        for path in mapped(self.mark) - self.left:
            self.left.add(path)
            self._tell(path)

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self.reaper.stdin.write(f"{word}\n".encode())
            self.reaper.stdin.flush()

    def forget(self) -> None:
        """Take the names of its shared memory away, which all its parts have opened by now.

        Then nothing is left even when this process is killed, too.
        """
        self.look()
        self._unlink()
        self.unnamed, self.error = True, ""  # what was said until now has hurt nobody

    def _unlink(self) -> None:
        for path in self.left:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        self.left.clear()

    def stop(self, patience: float = 1) -> None:
        """SIGTERM to vLLM, which ends its own; then SIGKILL to what is left, and its shared memory goes.

        Without long patience: SLURM's own SIGKILL follows, which would leave the memory.
        """
        self.left |= mapped(self.mark)
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        end = time.monotonic() + patience
        while time.monotonic() < end and parts(self.mark):
            self.process.poll()
            time.sleep(0.1)
        kill(self.mark, self.process.poll)
        self._unlink()
        self._tell(DONE)
        with contextlib.suppress(OSError):
            self.reaper.stdin.close()
        self.reaper.wait(10)


def parts(mark: str) -> list[int]:
    """The processes of one server, whatever became of their parents."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def mapped(mark: str) -> set[str]:
    """Files in shared memory that a server's processes have open: its own, of this user."""
    found = set()
    for pid in parts(mark):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                _, there, name = line.partition(SHM)
                named = there and not name.endswith(" (deleted)")
                if named and Path(SHM, name).stat().st_uid == os.getuid():
                    found.add(SHM + name)
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
    told = sys.stdin.read().splitlines()
    if DONE not in told:
        memory = mapped(mark)
        kill(mark)
        for path in [*private, *told, *memory]:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                Path(path).unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
