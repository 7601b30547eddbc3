"""Ray as a child of ./serve: started, watched, and ended from outside.

What waits inside Ray's own code hears no signal, or takes it where Ray cannot bear it.  And Ray's raylet
ends itself where its agents take more than 15 s to start, as they do on a busy machine
(ray-project/ray#65983); what waits for it never ends.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leftovers import Leftovers

# in its folder: what it is given; that Ray has come up; why it failed
ASKED, UP, ERROR = "asked.json", "up", "error"
LOOK = 1.0  # seconds
PATIENCE = 40  # seconds from the end of its input until it is killed
STORE = 100 << 20  # bytes of Ray's object store: requests are small
SHORT = 24  # letters of a folder, so that the names of sockets in it are within 107 bytes
GONE = "Ray's raylet ended:"
SLOW = f"{GONE} its agents took longer than the 15 s that it gives them, as on a busy machine"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def compiled() -> dict[str, str]:
    """Where torch keeps what it compiles, 20 CPU seconds' worth: not again in each TMPDIR."""
    with contextlib.suppress(OSError, RuntimeError):  # a home that may not be written, or none
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home, "ingot-serve/inductor")
        cache.mkdir(parents=True, exist_ok=True)
        return {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    return {}


class Program:
    """inside.py, given `asked`, with a folder of its own; `environment` is of all that it starts."""

    def __init__(self, asked: dict, environment: dict[str, str]):
        folder = os.environ.get("TMPDIR") or "/tmp"
        place = folder if len(folder) <= SHORT else "/tmp"
        self.scratch = Path(tempfile.mkdtemp(prefix="ingot-ray-", dir=place))
        self.raylet = 0  # its process, once it has been seen
        self.left = Leftovers([self.scratch])
        (self.scratch / ASKED).write_text(json.dumps(asked))
        own = {**environment, **self.left.environment, "TMPDIR": str(self.scratch)}
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(Path(__file__).with_name("inside.py")), str(self.scratch)],
            env={**compiled(), **os.environ, **own}, stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    @property
    def up(self) -> bool:
        """Has Ray come up?"""
        return (self.scratch / UP).exists()

    @property
    def failed(self) -> bool:
        """Has it said why?"""
        return (self.scratch / ERROR).exists()

    def ended(self) -> str:
        """Wait until it has failed, or is gone: why."""
        while self.process.poll() is None and not self.failed and not self._lost():
            time.sleep(LOOK)
            self.left.look(every=5)
        time.sleep(LOOK)  # where a signal to all processes ended it, ours may be a moment behind
        return self.why()

    def _lost(self) -> bool:
        """Is its raylet gone?"""
        if self.raylet:
            return not is_raylet(self.raylet)
        self.raylet = next(filter(is_raylet, self.left.processes()), 0)
        return False

    def why(self) -> str:
        """Its raylet gave up; or its own reason, the raylet's last words, or how it ended."""
        said = "".join(
            path.read_text(errors="replace")
            for path in self.scratch.glob("session_2*/logs/raylet.err")
        )
        if "WaitForDashboardAgentPorts" in said:
            return SLOW
        with contextlib.suppress(OSError):
            return (self.scratch / ERROR).read_text()
        critical = [line[:500] for line in said.splitlines() if " C " in line]
        code = self.process.poll()
        if critical or code is None:
            return f"{GONE} {critical[0] if critical else 'without a word'}"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return f"the program that speaks to Ray {how}"

    def keep_logs(self) -> None:
        """Of a start that failed: all that Ray says of why goes with its folder."""
        logs = [
            path for path in self.scratch.glob("session_*/logs") if not path.parent.is_symlink()
        ]
        for path in logs:
            kept = tempfile.mkdtemp(prefix="ingot-ray-logs-", dir=self.scratch.parent)
            shutil.copytree(path, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
            print(f"Ray's own logs: {kept}", flush=True)

    def stop(self) -> None:
        """By itself, where Ray runs; killed where it does not yet, or does not end."""
        if self.up and not self._lost():
            self.left.look()
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(PATIENCE)
        self.process.kill()
        self.process.wait()
        self.left.end()
        shutil.rmtree(self.scratch, ignore_errors=True)


def is_raylet(pid: int) -> bool:
    """Does the process run, and is it Ray's raylet?"""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return "(raylet)" in stat and stat.rpartition(")")[2].split()[0] != "Z"
    return False
