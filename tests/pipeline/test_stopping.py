"""A build that is told to end ends at once, with all that it started, and leaves nothing half done."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import checkpoints
from conftest import IRPA, ROOT
from ingot.base import processes

SLOW = """
    import os, time
    from ingot.base.atomic import replacing
    with replacing(irpa) as partial:
        partial.write_bytes(b"half")
        open("started", "w").write(str(os.getpid()))
        time.sleep(120)
"""


@pytest.fixture
def running(clone, store):
    """(folder, Snakemake's process, the step's pid) of a build in the middle of a slow step."""
    folder = clone("a")
    script = folder / "scripts/gguf_to_irpa.py"
    lines = script.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("def gguf_to_irpa"))
    body = next(n for n, line in enumerate(lines[start:], start) if line.rstrip().endswith("None:"))
    script.write_text("".join([*lines[: body + 1], SLOW, *lines[body + 1 :]]))
    command = [ROOT / ".venv/bin/snakemake", "-s", folder / "Snakefile", "--cores", "2", "--", IRPA]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "INGOT_STORE": str(store)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        # what is started in the background of a script ignores Ctrl-C, and so does what it starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / "started").exists() or not (folder / "started").read_text():
            assert process.poll() is None and time.monotonic() < end, process.stdout.read()
            time.sleep(0.1)
        yield folder, process, int((folder / "started").read_text())
    finally:
        for pid in [*processes.below(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def gone(pid, seconds):
    end = time.monotonic() + seconds
    while Path("/proc", str(pid)).exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not Path("/proc", str(pid)).exists()


def test_sigterm_to_snakemake_stops_the_step_and_says_so(running):
    folder, process, step = running
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=15)
    assert process.returncode == 128 + signal.SIGTERM and "failed" not in said
    assert "stopped by SIGTERM: the running steps are stopped" in said
    assert "gguf_to_irpa.py: stopped by SIGTERM; what was half done is removed" in said
    assert "Traceback" not in said
    assert gone(step, 5) and not list((folder / "artifacts").glob(".*"))


def test_a_step_does_not_outlive_a_killed_snakemake(running):
    folder, process, step = running
    process.kill()
    assert gone(step, 10)
    assert not list((folder / "artifacts").glob(".*"))


def test_another_terminal_follows_the_run_and_says_that_it_is_dead(running, ingot):
    folder, process, _ = running
    said = ingot("status", cwd=folder).stdout
    assert f"(pid {process.pid} on " in said and f"runs     {IRPA}" in said
    command = [ROOT / ".venv/bin/ingot", "status", "--follow"]
    follower = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert "1 running" in follower.stdout.readline()
        process.kill()
        rest, _ = follower.communicate(timeout=60)
    finally:
        follower.kill()
    last = rest.splitlines()[-1]
    assert "no run is alive" in last and f"ended while it built {IRPA}" in last
    assert json.loads(ingot("status", "--json", cwd=folder).stdout)["alive"] is False


def test_ctrl_c_shows_no_traceback(running, ingot):
    folder, process, step = running
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT and "Traceback" not in said, said
    assert gone(step, 5) and not list((folder / "artifacts").glob(".*"))
    assert "was stopped by Ctrl-C" in ingot("status", cwd=folder).stdout


def test_the_reason_of_a_failure_is_in_the_log_and_on_the_terminal(clone, build):
    folder = clone("a")
    checkpoints.of_another_size(folder / "models/demo")
    said = build(folder, "--show-failed-logs", "--", IRPA, fails=True)
    reason = checkpoints.OTHER_SIZE
    (log,) = folder.glob("logs/safetensors_to_gguf/*.log")
    assert reason in log.read_text() and said.count(reason) >= 2
