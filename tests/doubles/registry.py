"""A real registry on this machine, docker-registry, and a proxy before it that fails as networks do.

with Registry(folder) as registry: f"oci://{registry.host}/name:tag"
with Registry(folder, htpasswd=True, tls=True) as registry: ...
with Proxy(registry) as proxy: proxy.fault("GET", "blobs/sha256", cut=1000, times=2)
"""

import base64
import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAM = "docker-registry"
USER, SECRET = "builder", "s3cret-Pass"
# bcrypt of SECRET, at the least cost
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuumKVWSYe17ozCGcGOhpn1PsIYOB7PaOa\n"
CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {folder}/data}}
  delete: {{enabled: true}}
  maintenance: {{uploadpurging: {{enabled: false}}}}
http:
  addr: 127.0.0.1:{port}
"""
TLS = "  tls: {{certificate: {folder}/cert.pem, key: {folder}/key.pem}}\n"
AUTH = "auth: {{htpasswd: {{realm: registry, path: {folder}/htpasswd}}}}\n"


def installed() -> bool:
    return shutil.which(PROGRAM) is not None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def certificate(folder: Path) -> None:
    """key.pem and cert.pem of 127.0.0.1."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


class Registry:
    def __init__(self, folder: Path, htpasswd: bool = False, tls: bool = False):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port, self.tls = folder, free_port(), tls
        self.host = f"127.0.0.1:{self.port}"
        text = CONFIG + (TLS if tls else "") + (AUTH if htpasswd else "")
        (folder / "config.yml").write_text(text.format(folder=folder, port=self.port))
        (folder / "htpasswd").write_text(HTPASSWD)
        if tls:
            certificate(folder)

    def __enter__(self) -> "Registry":
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", self.folder / "config.yml"], stdout=log, stderr=log
            )
        for _ in range(100):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return self
            time.sleep(0.05)
        raise RuntimeError((self.folder / "log").read_text()[-1000:])

    def __exit__(self, *error) -> None:
        self.process.terminate()
        self.process.wait(10)

    def blob(self, digest: str) -> Path:
        """The file in which the registry keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.folder / f"data/docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data"


class Proxy:
    """Passes all on to a registry, but for the faults asked for; with `token` by bearer tokens.

    A fault is of the next `times` requests of a method whose path a pattern is found in:
    `status` (with `headers`) instead of the answer, a body `cut` after so many bytes, a byte of the body
    flipped (`flip`), the `body` of something else, one that is `endless`, that `drip`s, or comes at so
    many bytes/s (`slow`), an answer after a `delay` of seconds, or
    not before a Barrier's number of requests wait (`together`), a range ignored (`whole`), `extra` bytes
    behind it, an upload cut after `cut_upload` bytes, or tokens that have `ended`.
    """

    def __init__(self, registry: Registry, token: bool = False):
        self.registry, self.token, self.faults = registry, token, []
        self.seen: list[tuple[str, str, dict]] = []  # method, path, headers
        self.issued, self.ended, self.lock = 0, 0, threading.Lock()  # numbers of tokens
        self.slow = 0  # bytes/s
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def handle_any(self):
                proxy.answer(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def fault(self, method: str, pattern: str, times: int = 1, **what) -> None:
        self.faults.append({"method": method, "pattern": pattern, "times": times, **what})

    def _next_fault(self, handler) -> dict:
        with self.lock:
            for fault in self.faults:
                if (
                    fault["times"] and fault["method"] == handler.command
                    and re.search(fault["pattern"], handler.path)
                ):  # fmt: skip
                    fault["times"] -= 1
                    return fault
        return {}

    def answer(self, handler) -> None:
        if handler.path.startswith("/token"):
            self._give_token(handler)
            return
        fault = self._next_fault(handler)
        length = int(handler.headers.get("Content-Length") or 0)
        if "cut_upload" in fault:
            handler.rfile.read(min(fault["cut_upload"], length))
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        body = handler.rfile.read(length) if length else None
        self.seen.append((handler.command, handler.path, dict(handler.headers)))
        if self.token and not self._allowed(handler, fault):
            challenge = f'Bearer realm="http://{self.host}/token",service="ingot-test",scope="x"'
            self._send(handler, 401, b"{}", {"WWW-Authenticate": challenge})
            return
        time.sleep(fault.get("delay", 0))
        if "together" in fault:  # nobody is answered before so many wait
            fault["together"].wait(30)
        if "drip" in fault:
            self._drip(handler, fault["drip"])
            return
        if "endless" in fault:
            self._send_for_ever(handler)
            return
        if "status" in fault:
            self._send(handler, fault["status"], b"{}", fault.get("headers", {}))
            return
        kept = {
            key: value for key, value in handler.headers.items()
            if key.lower() not in ("host", "connection", "authorization")
            and not ("whole" in fault and key.lower() == "range")
        }  # fmt: skip
        upstream = http.client.HTTPConnection(self.registry.host, timeout=60)
        upstream.request(handler.command, handler.path, body, {**kept, "Host": self.host})
        found = upstream.getresponse()
        data = found.read()
        upstream.close()
        if "flip" in fault:
            data = (
                data[: fault["flip"]] + bytes([data[fault["flip"]] ^ 1]) + data[fault["flip"] + 1 :]
            )
        data = fault.get("body", data + bytes(fault.get("extra", 0)))
        headers = {
            key: value for key, value in found.getheaders()
            if key.lower() in ("location", "content-type", "range", "content-range")
        }  # fmt: skip
        size = int(found.headers.get("Content-Length") or 0)
        self.slow = fault.get("slow", 0)
        self._send(handler, found.status, data, headers, fault.get("cut"), size)

    def _drip(self, handler, where: str) -> None:
        """A byte every tenth of a second, for ten seconds."""
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n"
        handler.wfile.write(head + (b"\r\n" if where == "body" else b"X: "))
        with contextlib.suppress(OSError):
            for _ in range(99):
                handler.wfile.write(b"x")
                handler.wfile.flush()
                time.sleep(0.1)
        handler.close_connection = True

    def _send_for_ever(self, handler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                handler.wfile.write(bytes(1 << 16))
        handler.close_connection = True

    def _send(self, handler, status, data, headers, cut=None, size=None) -> None:
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(size if handler.command == "HEAD" else len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            with contextlib.suppress(OSError):
                while self.slow and data:
                    handler.wfile.write(data[: self.slow // 10])
                    handler.wfile.flush()
                    data = data[self.slow // 10 :]
                    time.sleep(0.1)
                handler.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            handler.wfile.flush()
            with contextlib.suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True

    def _allowed(self, handler, fault: dict) -> bool:
        if fault.get("ended"):
            self.ended = self.issued
        token = re.fullmatch(r"Bearer token-(\d+)", handler.headers.get("Authorization", ""))
        return token is not None and self.ended < int(token[1]) <= self.issued

    def _give_token(self, handler) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        if handler.headers.get("Authorization") != wanted:
            self._send(handler, 401, b"{}", {})
            return
        with self.lock:
            self.issued += 1
        self._send(handler, 200, json.dumps({"token": f"token-{self.issued}"}).encode(), {})
