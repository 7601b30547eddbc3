"""What a server starts and leaves on this machine, processes and shared memory: ended, and removed.

Run as a program it is the reaper, which does so when the process that started the server was killed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

DONE = "done"
MARK = "INGOT_SERVE_PART"  # in the environment of all that is ours
SHM = "/dev/shm/"


class Leftovers:
    """Of processes that have `environment`.  `private` are files and folders that go with them."""

    def __init__(self, private: list[Path]):
        self.mark = os.urandom(8).hex()
        self.environment = {MARK: self.mark}
        self.looked, self.unnamed = 0.0, False
        self.memory: set[str] = set()  # files in shared memory that its processes have mapped
        self.reaper = subprocess.Popen(
            [sys.executable, __file__, self.mark, *map(str, private)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        return parts(self.mark)

    def look(self, every: float = 0) -> None:
        """Note which files in shared memory are its own: a killed process leaves them."""
        if every and (self.unnamed or time.monotonic() - self.looked < every):
            return
        self.looked = time.monotonic()
        for path in mapped(self.mark) - self.memory:
            self.memory.add(path)
            self._tell(path)

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self.reaper.stdin.write(f"{word}\n".encode())
            self.reaper.stdin.flush()

    def unname(self) -> None:
        """Take the names of its shared memory away, which all its parts have opened by now.

        Then nothing is left even when this process is killed, too.
        """
        self.look()
        self._unlink()
        self.unnamed = True

    def _unlink(self) -> None:
        for path in self.memory:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        self.memory.clear()

    def end(self, reap=lambda: None) -> None:
        """SIGKILL to what is left, and its shared memory goes."""
        self.memory |= mapped(self.mark)
        kill(self.mark, reap)
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
    """Files in shared memory that a server's processes have open: its own, of this user.

    By inode: a named semaphore is mapped under the name that it had before its link.
    """
    inodes = set()
    for pid in parts(mark):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if SHM in line:
                    inodes.add(int(line.split()[4]))
    found = set()
    with contextlib.suppress(OSError):
        for one in os.scandir(SHM):
            with contextlib.suppress(OSError):
                state = one.stat(follow_symlinks=False)
                if state.st_ino in inodes and state.st_uid == os.getuid():
                    found.add(one.path)
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
