"""A server of ours on 127.0.0.1: started, waited for, and stopped whatever happens."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from ingot.base.entry import end
from ingot.base.refused import Refused

START_LIMIT = 1800  # seconds: loading hundreds of gigabytes from a cold disk
ANSWER_LIMIT = 300  # seconds
SOME = 1.0  # CPU seconds, less than which is no work
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # loopback: no proxy


class Server:
    """The server that `folder`/serve starts, in a session of its own, on a free port."""

    health = "/health"
    # seconds without health or work, after which it is begun again, once
    idle_limit: float | None = None
    patience = 20.0  # seconds that it is given to end by itself

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()

    def flags(self) -> list[str]:
        return [f"--port={self.port}"]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def headers(self) -> dict[str, str]:
        """Of requests: who asks."""
        return {}

    def __enter__(self) -> Self:
        if not (self.folder / "serve").is_file():
            raise Refused(
                f"{self.folder}: no folder of a server, expected its launch script; build it"
            )
        self.begun = 0
        self.log = (self.folder.parent / f".{self.folder.name}.{os.getpid()}.log").open("w+")
        self.handler = signal.signal(signal.SIGTERM, _stop)  # of a scheduler that ends the job
        try:
            self._begin()
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        self.process = subprocess.Popen(
            [str(self.folder.resolve() / "serve"), *self.flags()], env=self.environment(),
            stdout=self.log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.begun += 1

    def __exit__(self, *_) -> None:
        # told to end now, it would leave a server that heeds no SIGTERM
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        if self.begun:
            self._end()
        signal.signal(signal.SIGTERM, self.handler)
        self.log.close()
        Path(self.log.name).unlink(missing_ok=True)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self) -> None:
        """Stop all that it started: SIGTERM first, which shuts it down cleanly."""
        for number, patience in ((signal.SIGTERM, self.patience), (signal.SIGKILL, 5)):
            end = time.monotonic() + patience
            for pid in _session(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while (alive := _session(self.process.pid)) and time.monotonic() < end:
                time.sleep(0.05)
            if not alive:
                self.process.wait()
                break

    def _wait(self) -> None:
        end = time.monotonic() + START_LIMIT
        worked, since, looked = 0.0, time.monotonic(), 0.0
        while time.monotonic() < end:
            if self.idle_limit and self.begun == 1 and time.monotonic() > looked + 1:
                looked, now = time.monotonic(), _worked(self.process.pid)
                if abs(now - worked) > SOME:
                    worked, since = now, looked
                if looked - since > self.idle_limit:
                    self._end()
                    self._begin()
            if self.process.poll() is not None:
                raise Refused(f"{self.folder}: the server stopped at start:", self.tail())
            try:
                with OPEN(f"{self.url}{self.health}", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise Refused(f"{self.folder}: no health after {START_LIMIT} s:", self.tail())

    def words(self) -> str:
        """All that it has said."""
        return Path(self.log.name).read_text(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.words().splitlines()[-15:])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict) -> bytes:
        """The answer's body; one line and the end for an error."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **self.headers()},
        )
        try:
            with OPEN(request, timeout=ANSWER_LIMIT) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(
                f"{self.url}{path}: HTTP {error.code}: {error.read().decode()[:300]}"
            ) from None
        except OSError as error:
            raise Refused(f"{self.folder}: the server broke off ({error}):", self.tail()) from None


def _stop(*_) -> None:
    end("stopped by SIGTERM; the server was stopped too")


def _session(leader: int) -> list[int]:
    """The processes of a session that still run: mpirun gives each rank a group of its own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def _worked(leader: int) -> float:
    """The CPU seconds of a session's processes, and of those that they have seen end."""
    ticks = 0
    for pid in _session(leader):
        with contextlib.suppress(OSError):
            ticks += sum(
                map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
            )
    return ticks / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
