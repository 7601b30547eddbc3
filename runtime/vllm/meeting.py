"""All nodes of a job at one table: who is there, what they hold, which ports; then, who is still alive.

Each waits for the other by a question with a deadline.  Lines of JSON, over one connection per node; both
sides prove that they know the job's key, and each line after that, by its number.  A connection that ends
is a node that ended.
"""

import contextlib
import hmac
import json
import os
import queue
import selectors
import socket
import threading
import time

import network

from place import BLOCK, Place, Refused, Site, port_blocks

MEET_SECONDS = 300
ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}  # seconds: of a node without power
GONE = (ConnectionError, OSError)
STRANGER, LONGEST = 1 << 12, 1 << 20  # bytes of a line before the proof, and after it
STRANGERS = 256  # at the door at once, each for some seconds
OTHER = {"head": "worker", "worker": "head"}


class Line:
    """One connection: JSON lines both ways."""

    def __init__(self, connection: socket.socket):
        self.connection, self.rest = connection, b""
        self.secret, self.role = b"", ""  # once both have proved who they are
        self.said = self.heard = 0  # lines since then
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def say(self, **words) -> None:
        text = json.dumps(words).encode()
        if self.secret:
            text = self._mark(self.role, self.said, text) + text
            self.said += 1
        self.connection.settimeout(30)
        self.connection.sendall(text + b"\n")

    def hear(self, seconds: float) -> dict:
        """The next line; ConnectionError when there is none in time, or never will be."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            self.connection.settimeout(max(0.01, end - time.monotonic()))
            try:
                found = self.connection.recv(65536)
            except TimeoutError:
                raise ConnectionError("no answer in time") from None
            if not found or len(self.rest) > (LONGEST if self.secret else STRANGER):
                raise ConnectionError("the connection ended")
            self.rest += found
        line, _, self.rest = self.rest.partition(b"\n")
        if self.secret:
            mark, line = line[:64], line[64:]
            if not hmac.compare_digest(mark, self._mark(OTHER[self.role], self.heard, line)):
                raise ConnectionError("a line of somebody else")
            self.heard += 1
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise ConnectionError("no line of a node") from None

    def _mark(self, role: str, number: int, text: bytes) -> bytes:
        """Of whom, and which line: else one could be sent back, or twice."""
        return (
            hmac.new(self.secret, b"%s %d %s" % (role.encode(), number, text), "sha256")
            .hexdigest()
            .encode()
        )

    def waits(self) -> bool:
        """Is there something to hear, if only the end?"""
        if b"\n" in self.rest:
            return True
        with selectors.DefaultSelector() as ready:
            ready.register(self.connection, selectors.EVENT_READ)
            return bool(ready.select(0))


def known(line: Line, key: str, role: str, seconds: float = 5) -> bool:
    """Does the other side know the job's key?  Proves that this side does, too.

    A proof says whose it is: else the other side could send our own back.
    """
    own = os.urandom(16).hex()
    line.say(nonce=own)
    theirs = str(line.hear(seconds).get("nonce"))
    line.say(proof=proof(key, role, theirs))
    if not hmac.compare_digest(str(line.hear(seconds).get("proof")), proof(key, OTHER[role], own)):
        return False
    both = f"{own} {theirs}" if role == "head" else f"{theirs} {own}"
    line.secret, line.role = proof(key, "line", both).encode(), role
    return True


def proof(key: str, role: str, nonce: str) -> str:
    return hmac.new(key.encode(), f"{role} {nonce}".encode(), "sha256").hexdigest()


class Head:
    """Rank 0: hears all others, decides, and watches them."""

    def __init__(self, place: Place, site: Site, key: str):
        self.place, self.key = place, key
        self.seconds = site.number("meet_seconds", MEET_SECONDS)
        self.lines: dict[int, Line] = {}

    def gather(self, address: str) -> None:
        """Until every node is here.  They come by any address of this node, and prove who they are."""
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for first in port_blocks(self.place.number):
                with contextlib.suppress(OSError):
                    door.bind((address if address.startswith("127.") else "", first))
                    break
            else:
                raise Refused(f"{address}: no port to meet at is free, of 12000 to 32000")
            door.listen(64)
            came: queue.SimpleQueue[tuple[int, Line]] = queue.SimpleQueue()
            threading.Thread(target=self._open, args=(door, came), daemon=True).start()
            try:
                self._wait(came)
            finally:
                with contextlib.suppress(OSError):
                    door.shutdown(socket.SHUT_RDWR)  # else the thread keeps the port

    def _open(self, door: socket.socket, came: queue.SimpleQueue) -> None:
        """Ask each who comes, in a thread of its own: a stranger who is silent keeps no node waiting, and
        makes way for others."""
        strangers: dict[socket.socket, None] = {}
        lock = threading.Lock()

        def left(connection: socket.socket) -> bool:
            """It is a stranger no more; was it one?"""
            with lock:
                return strangers.pop(connection, 0) is None

        def ask(connection: socket.socket) -> None:
            with contextlib.suppress(*GONE):
                line = Line(connection)
                if known(line, self.key, "head") and left(connection):
                    came.put((line.hear(5).get("rank"), line))
                    return
            left(connection)
            connection.close()

        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = door.accept()
                with lock:
                    strangers[connection] = None
                    if len(strangers) > STRANGERS:
                        first = next(iter(strangers))
                        del strangers[first]
                        with contextlib.suppress(OSError):
                            first.shutdown(socket.SHUT_RDWR)  # its thread closes it
                threading.Thread(target=ask, args=(connection,), daemon=True).start()

    def _wait(self, came: queue.SimpleQueue) -> None:
        end = time.monotonic() + self.seconds
        while len(self.lines) < self.place.nodes - 1:
            try:
                rank, line = came.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                here = {0, *self.lines}
                missing = [n for rank, n in enumerate(self.place.names) if rank not in here]
                raise Refused(
                    f"{', '.join(missing)}: nothing heard for {self.seconds} s, expected all of "
                    f"{self.place.nodes} nodes; see sinfo, or set meet_seconds in the site file"
                ) from None
            if rank in range(1, self.place.nodes):
                self.lines[rank] = line

    def compare(self, own: dict, seconds: float) -> None:
        """Hear what each node has found, within `seconds`; refused where they are not alike."""
        end, waits = time.monotonic() + seconds, dict(self.lines)
        while waits:
            for rank, line in list(waits.items()):
                name = self.place.names[rank]
                if not line.waits():
                    continue
                try:
                    report = line.hear(5)
                except GONE as error:
                    raise Refused(f"{name}: {error} while it checked its files") from None
                if "refused" in report or "stopped" in report:
                    raise Refused(f"{name}: {report.get('refused', 'was stopped')}")
                for field in ("sums", "versions", "python"):
                    if report.get(field) != own[field]:
                        raise Refused(
                            f"{name}: {field} {report.get(field)} there, {own[field]} on "
                            f"{self.place.name}; install and copy the same on all nodes"
                        )
                del waits[rank]
            if waits and time.monotonic() > end:
                missing = ", ".join(self.place.names[rank] for rank in waits)
                raise Refused(
                    f"{missing}: still checking after {seconds:.0f} s; set read_mb_s in the site file"
                )
            time.sleep(0.1)

    def ports(self, address: str) -> int:
        """The first of a range of ports that is free on every node; all are told."""
        for first in port_blocks(self.place.number):
            answers = [network.all_free(address, first, BLOCK)]
            for rank, line in self.lines.items():
                try:
                    line.say(free=first)
                    answer = line.hear(30)
                except GONE as error:
                    raise Refused(
                        f"{self.place.names[rank]}: {error}, expected its free ports"
                    ) from None
                if "free" not in answer:
                    raise Refused(
                        f"{self.place.names[rank]}: {answer.get('refused', 'was stopped')}"
                    )
                answers.append(bool(answer["free"]))
            if all(answers):
                self.tell(go=first, master=address)
                return first
        raise Refused(
            f"{address}: ports taken on every range tried, expected one free on all nodes"
        )

    def ended(self, patience: float = 0) -> str:
        """Which node has ended and why; empty while all live, and of one that was told to stop."""
        end = time.monotonic() + patience
        while True:
            for rank, line in self.lines.items():
                name = self.place.names[rank]
                while line.waits():
                    try:
                        word = line.hear(1)
                    except GONE:
                        return f"{name}: ended without a word, or is unreachable"
                    if "refused" in word:
                        return f"{name}: {word['refused']}"
                    if "stopped" in word:
                        return ""
            if time.monotonic() >= end:
                return ""
            time.sleep(0.05)

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
        self.line.say(rank=place.rank)

    def _find(self) -> Line:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            for port in port_blocks(self.place.number):
                try:
                    line = Line(socket.create_connection((self.head, port), timeout=2))
                except OSError:
                    continue
                with contextlib.suppress(*GONE):
                    if known(line, self.key, "worker"):
                        return line
                line.connection.close()
            time.sleep(0.3)
        head = f"{self.place.names[0]} ({self.head})"
        raise Refused(f"{head}: does not answer for {self.seconds} s, expected the head")

    def follow(self, own: dict, address: str, seconds: float) -> tuple[int, str]:
        """Report, and answer until the head says: the first of the ports, and the master's address."""
        self.line.say(**own)
        while True:
            try:
                word = self.line.hear(seconds)
            except GONE as error:
                raise Refused(f"{self.place.names[0]}: {error}, expected the head") from None
            if "stop" in word:
                raise Refused("")  # the head says why
            if "go" in word:
                return word["go"], word["master"]
            self.line.say(free=network.all_free(address, word["free"], BLOCK))

    def refuse(self, why: str) -> bool:
        """Tell the head why this node ends; did it hear?"""
        try:
            self.line.say(refused=why)
        except OSError:
            return False
        return True

    def word(self) -> dict:
        """What the head says, if anything; `lost` where it has ended without a word."""
        if not self.line.waits():
            return {}
        try:
            return self.line.hear(1)
        except GONE:
            return {"lost": True}

    def close(self, stopped: bool = False) -> None:
        """Not before the head knows: the end of a process makes SLURM end the others."""
        with contextlib.suppress(*GONE):
            if stopped:
                self.line.say(stopped=True)
            while "stop" not in self.line.hear(5):
                pass
        self.line.connection.close()
