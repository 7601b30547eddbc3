"""All nodes of a job at one table: who is there, what they hold, which ports; then, who is still alive.

Each waits for the other by a question with a deadline.  Lines of JSON, over one connection per node; both
sides prove that they know the job's key.  A connection that ends is a node that ended.
"""

import contextlib
import hmac
import json
import os
import selectors
import socket
import time

import network

from place import BLOCK, Place, Refused, Site, port_blocks

MEET_SECONDS = 300


class Line:
    """One connection: JSON lines both ways."""

    def __init__(self, connection: socket.socket):
        self.connection, self.rest = connection, b""

    def say(self, **words) -> None:
        self.connection.sendall(json.dumps(words).encode() + b"\n")

    def hear(self, seconds: float) -> dict:
        """The next line; ConnectionError when there is none in time, or never will be."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            self.connection.settimeout(max(0.01, end - time.monotonic()))
            try:
                found = self.connection.recv(65536)
            except TimeoutError:
                raise ConnectionError("no answer in time") from None
            if not found or len(self.rest) > 1 << 20:
                raise ConnectionError("the connection ended")
            self.rest += found
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            raise ConnectionError("no line of a node") from None


def proof(key: str, nonce: str) -> str:
    return hmac.new(key.encode(), nonce.encode(), "sha256").hexdigest()


def known(line: Line, key: str, seconds: float = 5) -> bool:
    """Does the other side know the job's key?  Proves that this side does, too."""
    nonce = os.urandom(16).hex()
    line.say(nonce=nonce)
    line.say(proof=proof(key, str(line.hear(seconds).get("nonce"))))
    return hmac.compare_digest(str(line.hear(seconds).get("proof")), proof(key, nonce))


class Head:
    """Rank 0: hears all others, decides, and watches them."""

    def __init__(self, place: Place, site: Site, key: str, address: str):
        self.place, self.key, self.address = place, key, address
        self.seconds = site.number("meet_seconds", MEET_SECONDS)
        self.lines: dict[int, Line] = {}

    def gather(self, own: dict) -> dict[int, dict]:
        """The report of each rank, all alike where they must be."""
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for first in port_blocks(self.place.number):
                try:
                    door.bind((self.address, first))
                    break
                except OSError:
                    continue
            else:
                raise Refused(f"{self.address}: no port to meet at is free, of 12000 to 32000")
            door.listen(64)
            reports = {0: own}
            end = time.monotonic() + self.seconds
            while len(reports) < self.place.nodes:
                door.settimeout(max(0.01, end - time.monotonic()))
                try:
                    line = Line(door.accept()[0])
                    report = line.hear(5) if known(line, self.key) else {}
                except TimeoutError:
                    missing = [n for rank, n in enumerate(self.place.names) if rank not in reports]
                    raise Refused(
                        f"{', '.join(missing)}: nothing heard for {self.seconds} s, expected all of "
                        f"{self.place.nodes} nodes; see sinfo, or set meet_seconds in the site file"
                    ) from None
                except (ConnectionError, OSError):
                    continue  # another's connection, or a node that will say itself why it ended
                if why := report.get("refused"):
                    raise Refused(f"{self.place.names[report['rank']]}: {why}")
                if report.get("rank") in range(1, self.place.nodes):
                    self.lines[report["rank"]] = line
                    reports[report["rank"]] = report
        for rank, report in reports.items():
            for field in ("sums", "versions", "python"):
                if report[field] != own[field]:
                    raise Refused(
                        f"{self.place.names[rank]}: {field} {report[field]} there, {own[field]} on "
                        f"{self.place.name}; install and copy the same on all nodes"
                    )
        return reports

    def ports(self) -> int:
        """The first of a range of ports that is free on every node; all are told."""
        for first in port_blocks(self.place.number):
            answers = [network.all_free(self.address, first + 1, BLOCK - 1)]
            for line in self.lines.values():
                line.say(free=first + 1)
                answers.append(bool(line.hear(30).get("free")))
            if all(answers):
                for line in self.lines.values():
                    line.say(go=first, master=self.address)
                return first
        raise Refused(
            f"{self.address}: ports taken on every range tried, expected one free on all nodes"
        )

    def ended(self, patience: float = 0) -> str:
        """Which node has ended and why; empty while all live, and of one that was told to stop."""
        with selectors.DefaultSelector() as ready:
            for rank, line in self.lines.items():
                ready.register(line.connection, selectors.EVENT_READ, rank)
            for found, _ in ready.select(patience):
                name = self.place.names[found.data]
                try:
                    word = self.lines[found.data].hear(1)
                except (ConnectionError, OSError):
                    return f"{name}: ended without a word, or is unreachable"
                return f"{name}: {word['refused']}" if "refused" in word else ""
        return ""

    def tell(self, **word) -> None:
        for line in self.lines.values():
            with contextlib.suppress(OSError):
                line.say(**word)

    def close(self, stopped: bool = False) -> None:
        self.tell(stop=True)
        for line in self.lines.values():
            line.connection.close()


class Worker:
    """Another rank: finds the head, reports, does as it is told."""

    def __init__(self, place: Place, site: Site, key: str, head: str):
        self.place, self.key, self.head = place, key, head
        self.seconds = site.number("meet_seconds", MEET_SECONDS)
        self.line = self._find()

    def _find(self) -> Line:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            for port in port_blocks(self.place.number):
                try:
                    line = Line(socket.create_connection((self.head, port), timeout=2))
                except OSError:
                    continue
                try:
                    if known(line, self.key):
                        return line
                except (ConnectionError, OSError):
                    pass
                line.connection.close()
            time.sleep(0.3)
        head = f"{self.place.names[0]} ({self.head})"
        raise Refused(f"{head}: does not answer for {self.seconds} s, expected the head")

    def follow(self, own: dict, address: str) -> tuple[int, str]:
        """Report, and answer until the head says: the first of the ports, and the master's address."""
        self.line.say(rank=self.place.rank, **own)
        while True:
            try:
                word = self.line.hear(self.seconds + 60)
            except (ConnectionError, OSError) as error:
                raise Refused(f"{self.place.names[0]}: {error}, expected the head") from None
            if "stop" in word:
                raise Refused("")  # the head says why
            if "go" in word:
                return word["go"], word["master"]
            self.line.say(free=network.all_free(address, word["free"], BLOCK - 1))

    def refuse(self, why: str) -> bool:
        """Tell the head why this node ends; did it hear?"""
        try:
            self.line.say(rank=self.place.rank, refused=why)
        except OSError:
            return False
        return True

    def word(self) -> dict:
        """What the head says, if anything; `lost` where it has ended without a word."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.line.connection, selectors.EVENT_READ)
            if not ready.select(0):
                return {}
        try:
            return self.line.hear(1)
        except (ConnectionError, OSError):
            return {"lost": True}

    def close(self, stopped: bool = False) -> None:
        """Not before the head knows: the end of a process makes SLURM end the others."""
        with contextlib.suppress(ConnectionError, OSError):
            self.line.say(**({"stopped": True} if stopped else {}))
            while "stop" not in self.line.hear(5):
                pass
        self.line.connection.close()
