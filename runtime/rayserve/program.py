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

ASKED, UP, ERROR = "asked.json", "up", "error"  # what it is given; whether Ray runs; why it ended
LOOK = 1.0  # seconds
PATIENCE = 40  # seconds from the end of its input until it is killed
SHORT = 24  # letters of a folder, so that the names of sockets in it are within 107 bytes
GONE = "Ray's raylet ended:"
SLOW = f"{GONE} its agents took longer than the 15 s that it gives them, as on a busy machine"


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
            env={**os.environ, **own}, stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    @property
    def up(self) -> bool:
        """Does Ray run?"""
        return (self.scratch / UP).exists()

    def ended(self) -> str:
        """Why it ended, once it has."""
        while self.process.poll() is None and not self._lost():
            time.sleep(LOOK)
            self.left.look(every=5)
        time.sleep(LOOK)  # a signal to all, which ended it, comes to this process as well
        return self._last_words() or self._error()

    def _lost(self) -> bool:
        """Is its raylet gone?"""
        if self.raylet:
            return not is_raylet(self.raylet)
        self.raylet = next(filter(is_raylet, self.left.processes()), 0)
        return False

    def _last_words(self) -> str:
        """Why its raylet gave up, by what that said."""
        text = "".join(
            path.read_text(errors="replace")
            for path in self.scratch.glob("session_2*/logs/raylet.err")
        )
        if "WaitForDashboardAgentPorts" in text:
            return SLOW
        return next((f"{GONE} {line[:500]}" for line in text.splitlines() if " C " in line), "")

    def _error(self) -> str:
        with contextlib.suppress(OSError):
            return (self.scratch / ERROR).read_text()
        code = self.process.poll()
        if code is None:
            return f"{GONE} without a word"
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
