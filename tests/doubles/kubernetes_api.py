"""A Kubernetes API server, as far as Snakemake's plugin asks it: jobs are run here, as its nodes would.

    with Api(folder) as api: api.environment; api.jobs

No API server can be had without a cluster: this one runs the command of each job's container, and reports
it as a cluster does: active, then succeeded or failed; gone (404) once it is deleted.
"""

import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: me, user: {{}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
current-context: here
"""


class Api:
    def __init__(self, folder: Path):
        self.folder = folder
        self.jobs: dict[str, dict] = {}  # as they were posted
        self.running: dict[str, subprocess.Popen] = {}
        self.deleted: set[str] = set()

    def __enter__(self):
        self.folder.mkdir(parents=True)
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status: int, body: dict | str) -> None:
                text = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("/jobs"):
                    api.start(body)
                self.answer(201, body)

            def do_GET(self):
                self.answer(*api.get(self.path))

            def do_DELETE(self):
                name = self.path.partition("?")[0].rpartition("/")[2]
                api.stop(name)
                self.answer(200, {"kind": "Status", "status": "Success"})

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        (self.folder / "config").write_text(CONFIG.format(port=self.server.server_port))
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.stop(name)
        self.server.shutdown()
        self.server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.folder / "config")}

    def start(self, body: dict) -> None:
        name = body["metadata"]["name"]
        self.jobs[name] = body
        (container,) = body["spec"]["template"]["spec"]["containers"]
        log = (self.folder / f"{name}.log").open("wb")
        self.running[name] = subprocess.Popen(
            [*container["command"], *container["args"]], cwd=self.folder, stdout=log, stderr=log,
            env={name: word for name, word in os.environ.items() if name in ("PATH", "HOME", "LANG")}
            | {one["name"]: one["value"] for one in container.get("env", ()) if one.get("value")},
            start_new_session=True,
        )  # fmt: skip

    def stop(self, name: str) -> None:
        if name in self.running:
            self.running[name].kill()
            self.deleted.add(name)

    def get(self, path: str) -> tuple[int, dict | str]:
        if found := re.search(r"/jobs/([\w-]+)/status", path):
            process = self.running.get(found[1])
            if process is None or found[1] in self.deleted:
                return 404, {"kind": "Status", "status": "Failure", "code": 404}
            status = process.poll()
            word = "active" if status is None else "failed" if status else "succeeded"
            return 200, {**self.jobs[found[1]], "status": {word: 1}}
        if found := re.search(r"job-name(?:=|%3D)([\w-]+)", path):
            return 200, {"kind": "PodList", "items": [self.pod(found[1])]}
        if found := re.search(r"/pods/([\w-]+)/log", path):
            return 200, (self.folder / f"{found[1]}.log").read_text()
        return 200, {}

    def pod(self, name: str) -> dict:
        status = self.running[name].poll()
        state = {"running": {}} if status is None else {"terminated": {"exitCode": status}}
        one = {
            "name": "snakemake",
            "state": state,
            "ready": True,
            "restartCount": 0,
            "image": "x",
            "imageID": "x",
        }
        return {"metadata": {"name": name}, "status": {"containerStatuses": [one]}}
