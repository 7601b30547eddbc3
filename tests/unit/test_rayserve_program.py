"""./serve of a Ray Serve bundle and its child, as they end: real processes and signals, and a Ray that only
says what it was asked to do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT
from ingot.serving.rayserve.bundle import PARTS

RAY = {
    "ray/__init__.py": """
import os
from pathlib import Path
from ray import serve
def init(**said): Path(os.environ["SEEN"], "init").touch()
def cluster_resources(): return {"CPU": 9}
def is_initialized(): return True
def shutdown(): Path(os.environ["SEEN"], "down").touch()
""",
    "ray/serve/__init__.py": """
import os, time
from pathlib import Path
from types import SimpleNamespace as N
def status():
    here = Path(os.environ["SEEN"], "deployed").exists()
    state = os.environ.get("STATE", "RUNNING")
    one = N(status=state, deployments={}, message="it lacks a part")
    return N(proxies={}, applications={"a": one} if here else {})
def shutdown():
    time.sleep(float(os.environ.get("SLOW", 0)))
    Path(os.environ["SEEN"], "shutdown").touch()
""",
    "ray/serve/_private/__init__.py": "",
    "ray/serve/_private/api.py": """
import os
from pathlib import Path
from types import SimpleNamespace as N
def serve_start(**said):
    return N(deploy_apps=lambda schema: Path(os.environ["SEEN"], "deployed").touch())
""",
    "ray/serve/schema.py": """
from types import SimpleNamespace as N
def ServeDeploySchema(**said):
    return N(http_options=N(model_dump=dict), proxy_location="EveryNode")
""",
}
ASKING = """
import os, time
from pathlib import Path
def each(url, key, known):
    Path(os.environ["SEEN"], "asked").touch()
    time.sleep(float(os.environ.get("ANSWERS", 0)))
    yield "it answers"
"""


def until(found, seconds=60):
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def seen(tmp_path):
    """seen("shutdown"): was Ray asked to do that?"""
    return lambda name: (tmp_path / name).exists()


@pytest.fixture
def serve(tmp_path):
    """serve(**variables) starts ./serve."""
    parts = tmp_path / "b/parts"
    parts.mkdir(parents=True)
    for path in (ROOT / "runtime/rayserve").glob("*.py"):
        shutil.copy(path, parts)
    for name in PARTS:
        shutil.copy(ROOT / "runtime/vllm" / name, parts)
    (parts / "asking.py").write_text(ASKING)
    for name, text in RAY.items():
        (parts / name).parent.mkdir(parents=True, exist_ok=True)
        (parts / name).write_text(text)
    about = {"pins": {}, "environment": {}, "asks": {}, "start_seconds": 60, "shm_bytes": 0}
    served = {"http_options": {}, "applications": [{"name": "a", "import_path": "a:b"}]}
    for name, text in {
        "bundle.json": json.dumps(about), "smoke.json": "{}", "serve.yaml": json.dumps(served),
    }.items():  # fmt: skip
        (tmp_path / "b" / name).write_text(text)
    sums = subprocess.run(
        ["sha256sum", "serve.yaml"], cwd=tmp_path / "b", capture_output=True, text=True, check=True
    )
    (tmp_path / "b/SHA256SUMS").write_text(sums.stdout)
    started = []

    def start(*words, **variables):
        process = subprocess.Popen(
            [sys.executable, "-B", parts / "start.py", "--address", "elsewhere", *words],
            env={**os.environ, "SEEN": str(tmp_path), "TMPDIR": "/tmp", **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_told_to_end_while_an_answer_is_awaited_it_takes_its_applications_from_the_cluster(
    serve, seen
):
    """It was killed after 40 s, and what it had deployed stayed there."""
    one = serve(ANSWERS="300")
    until(lambda: seen("asked"))
    one.terminate()
    out, err = one.communicate(timeout=90)
    assert one.returncode == 0 and out.splitlines()[-1].endswith(" stopped") and not err, out + err
    assert seen("shutdown") and seen("down")


def test_told_to_end_when_it_serves_it_does_so(serve, seen):
    one = serve()
    until(lambda: "ready after" in one.stdout.readline())
    one.send_signal(signal.SIGINT)
    out, err = one.communicate(timeout=90)
    assert one.returncode == 0 and out.splitlines()[-1].endswith(" stopped") and not err, out + err
    assert seen("shutdown")


def test_a_failure_is_said_at_once_and_by_the_exit_status_whatever_comes_then(serve, seen):
    one = serve(STATE="DEPLOY_FAILED", SLOW="5")
    until(lambda: one.stdout.readline() == "error: a: it lacks a part\n")
    assert not seen("shutdown"), "who waits for the reason has it before all is taken down"
    one.terminate()
    out, err = one.communicate(timeout=90)
    assert one.returncode == 1 and not out and not err, out + err
    assert seen("shutdown")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_of_its_processes_takes_the_applications_down_too(serve, seen, number):
    one = serve(ANSWERS="300")
    until(lambda: seen("asked"))
    words = subprocess.run(
        ["pgrep", "-P", str(one.pid), "-f", "inside.py"], capture_output=True, text=True, check=True
    )
    os.kill(int(words.stdout), number)
    one.send_signal(number)
    out, err = one.communicate(timeout=90)
    assert one.returncode == 0 and not err, out + err
    assert seen("shutdown")


def test_told_to_end_while_files_are_read_it_waits_for_none(serve, seen, tmp_path):
    """A shard of many gigabytes on a slow disk; here a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "b/weights")
    with (tmp_path / "b/SHA256SUMS").open("a") as file:
        file.write(f"{64 * '0'}  weights\n")
    one = serve()
    time.sleep(2)
    one.terminate()
    out, _ = one.communicate(timeout=60)
    assert one.returncode == 0 and out.endswith(" stopped\n") and not seen("init")


def test_a_port_that_there_cannot_be_is_refused(serve):
    out, err = serve("--port", "99999").communicate(timeout=60)
    assert out == "error: --port: 99999, expected a number from 1 to 65535; name another\n"
    assert not err
