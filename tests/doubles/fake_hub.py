"""A stand-in for the Hugging Face hub on loopback, with the faults of the real one.

Serves folders ORG/NAME of `root` on 127.0.0.1; large files are redirected to the host name
localhost, as the real hub sends them to another host.  `faults` are armed by a test, `requests`
say what was asked: (method, path, Range, Authorization, status).
"""

import base64
import hashlib
import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".irpa")
MARK = "00000000000000000042"  # between the parts of an answer
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(ThreadingHTTPServer):
    """Says nothing of a client that was killed."""

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Hub:
    """with Hub(folder) as hub: hub.url, hub.faults, hub.requests."""

    def __init__(self, root: Path):
        self.root, self.faults, self.requests = root, {}, []
        self.sent = 0  # bytes of bodies
        self.uploaded: dict[str, bytes] = {}  # by SHA-256
        self.committed: dict[str, bytes] = {}  # by path
        self.created: list[dict] = []  # repositories, as they were asked for
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def armed(self, fault: str):
        """The value of a fault; one given as [value, times] stops after that many."""
        with self.lock:
            value = self.faults.get(fault)
            if isinstance(value, list):
                if value[1] == 0:
                    return None
                value[1] -= 1
                return value[0]
            return value

    def bodies(self, name: str) -> list[tuple]:
        return [r for r in self.requests if r[0] == "GET" and r[1].endswith(name)]


def described(path: Path) -> dict:
    state = path.stat()
    if state.st_blocks * 512 < state.st_size // 2:  # holes that stand for weights nobody may fetch
        made_up = hashlib.sha256(str(path).encode()).hexdigest()
        return {"size": state.st_size, "sha256": made_up, "git": made_up[:40]}
    data = path.read_bytes()
    return {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "git": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }


def handler_of(hub: Hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def do_POST(self):
            self.upload()

        def do_PUT(self):
            self.upload()

        def upload(self):
            """What huggingface_hub asks when it uploads: large files first, then one commit of all."""
            path = unquote(urlsplit(self.path).path).strip("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            seen = (self.command, path, None, self.headers.get("Authorization"), 0)
            hub.requests.append(seen)
            if path.startswith("put/"):
                hub.uploaded[path.removeprefix("put/")] = body
                return self.send(200, {})
            if status := hub.armed("upload"):
                return self.refuse(status, "")
            if not self.headers.get("Authorization"):
                return self.refuse(401, "")
            said = json.loads(body.splitlines()[0]) if body else {}
            if path == "api/repos/create":
                hub.created.append(said)
                return self.send_json({"url": f"{hub.url}/{said['organization']}/{said['name']}"})
            if path == "api/validate-yaml":
                return self.send_json({"errors": [], "warnings": []})
            if "/preupload/" in path:
                paths = [one["path"] for one in said["files"]]
                modes = ["lfs" if one.endswith(LARGE) else "regular" for one in paths]
                files = [
                    {"path": one, "uploadMode": mode, "shouldIgnore": False}
                    for one, mode in zip(paths, modes, strict=True)
                ]
                return self.send_json({"files": files})
            if path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/put/{one['oid']}"}}}
                    for one in said["objects"]
                ]
                return self.send_json({"transfer": "basic", "objects": objects})
            if "/commit/" in path:
                for line in map(json.loads, body.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        hub.committed[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        hub.committed[value["path"]] = hub.uploaded[value["oid"]]
                url = f"{hub.url}/org/name/commit/{COMMIT}"
                return self.send_json({"commitUrl": url, "commitOid": COMMIT})
            self.refuse(404, "")

        def answer(self):
            path = unquote(urlsplit(self.path).path)
            parts = path.strip("/").split("/")
            self.status = 0
            try:
                if path == "/loop":
                    self.send(302, {"Location": "/loop"})
                elif path.startswith("/api/models/"):
                    self.api(parts[2:])
                elif len(parts) > 4 and parts[2] == "resolve":
                    self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
                elif parts[0] == "large":
                    self.body(hub.root / "/".join(parts[1:]))
                else:
                    self.refuse(404, "EntryNotFound")
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                hub.requests.append(
                    (
                        self.command,
                        path,
                        self.headers.get("Range"),
                        self.headers.get("Authorization"),
                        self.status,
                    )
                )

        def send(self, status, headers, body=b""):
            self.status = status
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
                hub.sent += len(body)

        def refuse(self, status, code, **headers):
            body = json.dumps({"error": code}).encode()
            self.send(status, {"X-Error-Code": code, "X-Error-Message": code, **headers}, body)

        def gate(self) -> bool:
            if status := hub.armed("gated"):
                self.refuse(status, "GatedRepo")
            return bool(status)

        def api(self, parts):
            if status := hub.armed("api"):
                return self.refuse(status, "", **({"Retry-After": 0} if status == 429 else {}))
            revision = parts[3] if len(parts) > 3 else "main"
            folder = self.folder("/".join(parts[:2]), revision)
            if not folder.is_dir():
                return self.refuse(401, "RepoNotFound")
            if revision not in ("main", COMMIT) and "@" not in folder.name:
                return self.refuse(404, "RevisionNotFound")
            if len(parts) > 2 and parts[2] == "tree":
                if fault := hub.armed("tree"):
                    return self.misbehave(fault)
                return self.send_json([self.entry(path) for path in sorted(folder.iterdir())])
            name = "/".join(parts[:2])
            self.send_json({"id": name, "modelId": name, "sha": COMMIT, "siblings": []})

        def misbehave(self, fault):
            """An answer as a portal, a proxy or an attacker gives it."""
            if callable(fault):  # the entries, changed
                folder = hub.root / "org/name"
                return self.send_json(
                    fault([self.entry(path) for path in sorted(folder.iterdir())])
                )
            status, headers, body = fault
            headers = {name: value.format(port=hub.port) for name, value in headers.items()}
            if body != "endless":
                return self.send(status, headers, body)
            self.status = status
            self.send_response(status)
            self.end_headers()
            self.close_connection = True
            while True:  # until the client has had enough
                self.wfile.write(b" " * (1 << 20))

        def folder(self, repository, revision):
            """ORG/NAME@REVISION where there is one, else ORG/NAME."""
            special = hub.root / f"{repository}@{revision}"
            return special if special.is_dir() else hub.root / repository

        def send_json(self, content):
            self.send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

        def entry(self, path):
            about = described(path)
            name = hub.armed("badpath") or path.name if path.name == "config.json" else path.name
            entry = {"type": "file", "path": name, "size": about["size"], "oid": about["git"]}
            if path.suffix in LARGE:
                entry["lfs"] = {"oid": about["sha256"], "size": about["size"], "pointerSize": 134}
            return entry

        def resolve(self, repository, revision, name):
            if self.gate():
                return
            path = self.folder(repository, revision) / name
            if not path.is_file() or hub.armed("lost") == name:
                return self.refuse(404, "EntryNotFound")
            about = described(path)
            commit = {"X-Repo-Commit": hub.armed("moved") or revision, "Accept-Ranges": "bytes"}
            if path.suffix not in LARGE:
                return self.body(path, {**commit, "ETag": f'"{about["git"]}"'})
            self.send(
                302,
                {
                    **commit,
                    "X-Linked-Etag": f'"{about["sha256"]}"',
                    "X-Linked-Size": about["size"] + (hub.armed("badsize") or 0),
                    "Location": f"http://localhost:{hub.port}/large/{path.relative_to(hub.root)}",
                },
            )

        def body(self, path, headers=None):
            if self.command == "GET" and (status := hub.armed("status")):
                return self.refuse(status, "", **({"Retry-After": 0} if status == 429 else {}))
            asked = self.headers.get("Range")
            if asked and not asked.startswith("bytes=0-") and (status := hub.armed("busy")):
                return self.refuse(status, "", **{"Retry-After": 1})
            if asked and "," in asked and not hub.armed("norange"):
                if not hub.armed("single"):
                    return self.ranges(path, asked)
                asked = None  # as object stores: the whole file
            size = path.stat().st_size
            first, last = 0, size - 1
            if asked and not hub.armed("norange"):
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                first, last = int(begin), min(int(end or last), last)
            with path.open("rb") as file:
                file.seek(first)
                data = file.read(last + 1 - first)
            if self.command == "GET":
                if hub.armed("flip") and not first:
                    data = bytes([data[0] ^ 1]) + data[1:]
                if path.suffix in LARGE and not asked and hub.armed("spoilt"):
                    data = data[:-1] + bytes([data[-1] ^ 1])
                data += bytes(hub.armed("longer") or 0)
            last = first + len(data) - 1
            self.status = 206 if first or last + 1 < size else 200
            self.send_response(self.status)
            if self.status == 206:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            for name, value in {"Content-Length": len(data), **(headers or {})}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "HEAD":
                return
            cut = hub.armed("cut")
            self.pour(data[:cut])
            if cut is not None:
                self.close_connection = True
                if hub.faults.get("reset"):  # RST instead of FIN, once the client has read it all
                    time.sleep(0.3)
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()

        def ranges(self, path, asked):
            """RFC 9110, 15.3.7.2: each range in a part of its own."""
            body, size = b"", path.stat().st_size
            file = path.open("rb")
            for one in asked.removeprefix("bytes=").split(","):
                first, last = map(int, one.split("-"))
                said = f"Content-Range: bytes {first}-{last}/{size}"
                head = f"\r\n--{MARK}\r\nContent-Type: binary/octet-stream\r\n{said}\r\n\r\n"
                file.seek(first)
                body += head.encode() + file.read(last + 1 - first)
            file.close()
            if hub.armed("nan"):  # of bfloat16
                body = body[:-2] + b"\xff\xff"
            if hub.armed("spoilt"):
                body = body[:-1] + bytes([body[-1] ^ 1])
            kind = {"Content-Type": f"multipart/byteranges; boundary={MARK}"}
            self.send(206, kind, body + f"\r\n--{MARK}--\r\n".encode())

        def pour(self, data):
            pause = hub.faults.get("slow", 0)  # seconds a megabyte
            for start in range(0, len(data), 1 << 18):
                self.wfile.write(data[start : start + (1 << 18)])
                self.wfile.flush()
                hub.sent += len(data[start : start + (1 << 18)])
                time.sleep(pause / 4)

    return Handler
