"""A bundle's job on a real SLURM of two nodes: it serves right, or ends, says why, and leaves nothing."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import bundles
import slurm
from ingot.driver.catalogue.rules.environment import BYTECODE
from ingot.parity.divergence import log_softmax
from ingot.parity.reference import read

SOON = 30  # seconds in which a job ends, whatever its cause


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    slurm.skip_where_missing()
    folder = tmp_path_factory.mktemp("serving") / "cluster"
    with slurm.Slurm(folder, cpu="cpu1,gpu1", kill_wait=5) as found:
        yield found


@pytest.fixture
def reference(shared, clone):
    folder = clone("reference")
    shared(folder, "--", "artifacts/demo.reference.npz")
    return folder / "artifacts/demo.reference.npz"


class Job:
    """One bundle's job: its folder was copied elsewhere, the site file is all that was written."""

    def __init__(self, cluster, folder: Path, bundle: Path, python: Path, site: dict, said: dict):
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        self.bundle = shutil.copytree(bundle, folder / "moved")
        self.scratch = Path(tempfile.mkdtemp())  # of a short path, for sockets
        own = {
            "python": python, "interface": "lo", "state": folder / "state", "partition": "cpu",
            "scratch": self.scratch, "time": "0:30:00", **site,
        }  # fmt: skip
        lines = [f"{key} = {value}\n" for key, value in own.items() if value]
        (folder / "serve.conf").write_text("".join(lines))
        self.environment = {
            **os.environ, **cluster.environment, "INGOT_SERVE_SITE": str(folder / "serve.conf"),
            "STANDIN": json.dumps(said),
        }  # fmt: skip
        for name in ("PYTHONDONTWRITEBYTECODE", BYTECODE):
            self.environment.pop(name, None)

    def run(self, verb: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.bundle / verb, *words], cwd=self.folder, env=self.environment, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip

    def submit(self):
        done = self.run("submit")
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[1]
        return self

    @property
    def log(self) -> str:
        path = self.folder / f"ingot-{self.id}.log"
        return path.read_text() if path.exists() else ""

    def until(self, text: str, seconds: float = 60):
        end = time.monotonic() + seconds
        while text not in self.log:
            assert self.runs() or not self.log, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.1)
        return self

    def runs(self) -> bool:
        return self.id in self.cluster.jobs()

    def ended(self, seconds: float = SOON) -> str:
        """Its last words, once it has ended and left nothing."""
        began = time.monotonic()
        while self.runs() or self.processes():
            assert time.monotonic() - began < seconds, (self.log, self.processes())
            time.sleep(0.1)
        end = time.monotonic() + 5
        while self.left() and time.monotonic() < end:
            time.sleep(0.1)
        assert not self.left()
        return self.log

    def left(self) -> list[Path]:
        state = self.folder / "state" / self.id
        secrets = [state / name for name in ("key", "header") if (state / name).exists()]
        return [
            *self.scratch.iterdir(),
            *Path("/dev/shm").glob(f"ingot_{self.scratch.name}_*"),
            *secrets,
        ]

    def processes(self, *words: str) -> list[int]:
        """Of the bundle's folder, with these words in their arguments."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.bundle) in line and all(word in line for word in words):
                    found.append(int(path.parent.name))
        return found

    def kill(self, *words: str) -> None:
        for pid in self.processes(*words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def node(self, rank: int) -> int:
        """The process of ours on a node."""
        for pid in self.processes("parts/node.py"):
            words = Path(f"/proc/{pid}/environ").read_bytes()
            if b"SLURM_NODEID=%d\0" % rank in words:
                return pid
        raise AssertionError(self.log)


@pytest.fixture
def job(two_nodes, tmp_path, reference):
    """job(fault="load") submits the stand-in's bundle over two nodes."""
    found = []

    def run(site=None, second=None, bundle=None, submit=True, **said) -> Job:
        number = len(found)
        one = bundle or bundles.write(tmp_path / f"bundle{number}", reference, tp=2, nodes=2)
        path = bundles.standin(tmp_path / f"site{number}")
        python = bundles.python(path, path, **(second or {}))
        found.append(Job(two_nodes, tmp_path / f"job{number}", one, python, site or {}, said))
        return found[-1].submit() if submit else found[-1]

    yield run
    for one in found:
        if hasattr(one, "id"):
            two_nodes.call("scancel", one.id)


def test_it_is_ready_when_it_has_answered_right_and_not_before(job):
    one = job(load=3)
    one.until("all 2 nodes are alike")
    assert one.run("status").stdout.startswith(one.id) and one.run("smoke").returncode == 1
    assert "ready" not in one.log
    one.until("ready after")
    state = one.folder / "state" / one.id
    assert (state / "key").stat().st_mode & 0o777 == 0o600
    key = (state / "key").read_text()
    assert key not in one.log and key not in (state / "vllm-0.log").read_text()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert key.encode() not in path.read_bytes()
    assert not list(one.bundle.rglob("__pycache__"))
    assert "KV cache: 16,384 tokens, planned 16,384" in one.log
    assert one.run("status").stdout.startswith(f"{one.id} on cpu1: ready, http://127.0.0.1:")
    assert "tokens are the reference's" in one.run("smoke").stdout
    assert f"curl -H @{state}/header" in one.run("connect").stdout
    end = time.monotonic() + 5
    while list(Path("/dev/shm").glob(f"ingot_{one.scratch.name}_*")):
        assert time.monotonic() < end, "a SIGKILL would leave it"
        time.sleep(0.1)
    assert one.run("stop").returncode == 0
    assert "stopped by SIGTERM" in one.ended()


@pytest.mark.parametrize("ends", ["./stop", "SIGKILL"])
def test_a_server_without_slurm_is_found_and_stopped_by_the_same_commands(
    ends, job, tmp_path, reference
):
    bundle = bundles.write(tmp_path / "alone", reference, tp=1, nodes=1)
    one = job(bundle=bundle, submit=False)
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [one.bundle / "serve"], cwd=one.folder, env=one.environment, stdout=log, stderr=log
        )
    end = time.monotonic() + 60
    while "ready after" not in (said := (tmp_path / "log").read_text()):
        assert server.poll() is None and time.monotonic() < end, said
        time.sleep(0.1)
    assert one.run("status").stdout.startswith(
        f"local-{server.pid} on {os.uname().nodename}: ready"
    )
    assert "tokens are the reference's" in one.run("smoke").stdout
    if ends == "./stop":
        assert one.run("stop").stdout == f"local-{server.pid} is told to stop\n"
        assert server.wait(SOON) == 143
    else:
        one.kill()
        server.wait(SOON)
    for verb in ("status", "stop"):
        said = one.run(verb)
        assert (said.returncode, said.stderr.count("\n")) == (1, 1), said
        assert "no server of it runs" in said.stderr


def test_a_server_that_says_something_else_is_never_ready(job):
    one = job(fault="wrong")
    said = one.ended(60)
    assert "wrong weights" in said and "ready" not in said


def test_a_model_without_a_reference_is_ready_when_it_says_anything(job, tmp_path):
    bundle = bundles.write(tmp_path / "unknown", None, tp=2, nodes=2)
    one = job(bundle=bundle).until("ready after")
    assert "14 tokens generated, checked against no reference" in one.log
    assert "expected 7 tokens" in job(bundle=bundle, fault="silent").ended(60)


def test_a_server_that_dies_at_its_first_completion_ends_the_job_and_says_why(job):
    said = job(fault="first completion").ended(60)
    assert "vLLM ended, exit status 1: AssertionError: self.intermediate_tensors" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_model_that_does_not_load_on_one_node_ends_all(job, rank):
    said = job(fault="load", rank=rank, load=20).ended(60)
    assert "ValueError: the weights are not of this model" in said
    assert ("gpu1: vLLM ended" if rank else "cpu1: error: vLLM ended") in said
    ours = [line for line in said.splitlines() if line.startswith(("cpu1: ", "gpu1: "))]
    assert len(ours) == 1, said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_server_ends_the_job(job, rank):
    one = job().until("ready after")
    one.kill("vllm.entrypoints.cli.main", f"--node-rank {rank}")
    assert "vLLM ended, killed by signal 9" in one.ended()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_node_program_ends_the_job(job, rank):
    one = job().until("ready after")
    os.kill(one.node(rank), signal.SIGKILL)
    said = one.ended()
    assert "ended without a word, or is unreachable" in said
    assert ("cpu1: the head" if rank == 0 else "gpu1: ended") in said


def test_a_late_node_is_waited_for(job):
    job(second={"before": "sleep 8"}).until("ready after")


def test_a_node_whose_files_take_long_to_check_is_waited_for(job, tmp_path):
    """Longer than nodes may take to meet: with 405 GB each it is three quarters of an hour."""
    slow = bundles.standin(tmp_path / "slow")
    (slow / "sitecustomize.py").write_text(
        "import os, time\nreal = os.statvfs\n"
        "os.statvfs = lambda path: (path == '/dev/shm' and time.sleep(7), real(path))[1]\n"
    )
    one = job(site={"meet_seconds": 4}, second={"other": slow}).until("ready after")
    assert "all 2 nodes are alike" in one.log


def test_a_key_of_another_job_opens_nothing(job, tmp_path):
    """Whoever listens first at the head's port sends our own words back, and is not believed."""
    one = job(submit=False)
    place = str(one.bundle / "parts")
    code = (
        "import socket, threading, meeting\n"
        "door = socket.create_server(('127.0.0.1', 0))\n"
        "far = socket.create_connection(door.getsockname())\n"
        "near = door.accept()[0]\n"
        "def echo():\n"
        "    while data := far.recv(4096):\n"
        "        far.sendall(data)\n"
        "threading.Thread(target=echo, daemon=True).start()\n"
        "print(meeting.known(meeting.Line(near), 'key', 'worker'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": place}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"


def test_a_node_that_never_comes_is_named(job):
    said = job(site={"meet_seconds": 4}, second={"before": "sleep 100"}).ended(60)
    assert "gpu1: nothing heard for 4 s" in said


def test_a_taken_port_is_gone_around(job, two_nodes):
    first = 12_000 + (two_nodes.submitted() + 2) % 800 * 25  # submit asks with --test-only first
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", first + 1))
        other.listen()
        one = job().until("ready after")
        assert 12_000 + int(one.id) % 800 * 25 == first
    assert "ports from" in one.log and f":{first + 1}/" not in one.log


def test_a_port_that_is_taken_while_it_loads_is_not_taken_for_its_own(job):
    """Seen when two clusters' jobs of one number shared a machine: the other's /health was 200."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one = job(site={"port": port}, load=3).until("nodes are alike")

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", port), Healthy) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        said = one.ended()
        other.shutdown()
    assert "vLLM ended" in said and "Address already in use" in said


def test_a_taken_port_that_the_site_named_is_refused(job):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = job(site={"port": port}).ended(60)
    assert f"127.0.0.1:{port}: taken on cpu1" in said


def test_scancel_while_it_loads_leaves_nothing(job):
    one = job(load=60).until("all 2 nodes")
    time.sleep(2)
    began = time.monotonic()
    assert one.run("stop", one.id).returncode == 0
    assert "stopped by SIGTERM" in one.ended()
    assert time.monotonic() - began < SOON


def test_two_bundles_share_two_nodes(job):
    one, other = job(), job()
    one.until("ready after"), other.until("ready after")
    for each in (one, other):
        assert "tokens are the reference's" in each.run("smoke").stdout


def test_the_time_limit_ends_it_and_says_so(job):
    one = job(site={"time": "0:01:00"}).until("ready after")
    assert "stopped: the job's time is over" in one.ended(150)


def test_another_version_on_one_node_is_refused(job, tmp_path):
    other = bundles.standin(tmp_path / "other", torch="2.12.0")
    said = job(second={"other": other}).ended(60)
    assert "gpu1: torch: 2.12.0 on " in said and "expected 2.13.0+cpu" in said


def test_a_changed_file_is_refused_before_anything_is_loaded(job, tmp_path, reference):
    bundle = bundles.write(tmp_path / "changed", reference, tp=2, nodes=2)
    with (bundle / "model/tokenizer.json").open("a") as file:
        file.write(" ")
    said = job(bundle=bundle).ended(60)
    assert "tokenizer.json: changed since it was built" in said and "loading" not in said


def test_weights_of_as_many_other_bytes_are_refused(job, tmp_path, reference):
    bundle = bundles.write(tmp_path / "changed", reference, tp=2, nodes=2)
    path = bundle / "model/model-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "its bytes are not those that were built" in job(bundle=bundle).ended(60)


def test_a_cache_that_is_not_the_plans_is_refused(job):
    assert "KV cache: 16,400 tokens, expected the plan's 16,384" in job(kv=16).ended(60)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ({"partition": "fast"}, "invalid partition specified: fast"),
        ({"time": "3:00:00"}, "PartitionTimeLimit: the job would wait for ever"),
        ({"python": ""}, "python is missing"),
        ({"colour": "red"}, "'colour = red', expected KEY = VALUE with one of python"),
    ],
)  # fmt: skip
def test_what_slurm_cannot_do_is_said_before_it_waits(job, site, said):
    one = job(site=site, submit=False)
    before = {*one.cluster.jobs()}  # of the tests before, which may still be ending
    done = one.run("submit")
    assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert {*one.cluster.jobs()} <= before


def test_a_name_that_means_this_machine_is_refused(job):
    assert "which no other node reaches; correct /etc/hosts" in job(site={"interface": ""}).ended(
        60
    )


@pytest.fixture
def vllm(two_nodes, tmp_path, python):
    """vllm(bundle) submits a job of vLLM's own, whose bytecode is kept, as it is where users install it."""

    def submitted(bundle):
        one = Job(two_nodes, tmp_path / "job", bundle, python("vllm"), {}, {})
        if place := os.environ.get(BYTECODE):
            one.environment[BYTECODE] = place
        return one.submit()

    return submitted


@pytest.mark.parametrize(("tp", "nodes"), [(1, 1), (2, 2)])
def test_vllm_itself_serves_the_demo(vllm, tmp_path, reference, tp, nodes):
    """On one node, and with tensor parallel size 2 over two nodes by vLLM's own multi-node start."""
    bundle = bundles.write(tmp_path / "bundle", reference, tp=tp, nodes=nodes)
    one = vllm(bundle)
    one.until("ready after", 400)
    state = json.loads((one.folder / "state" / one.id / "state.json").read_bytes())
    key = (one.folder / "state" / one.id / "key").read_text()
    largest = 0.0
    for answer in read(reference):
        tokens, scores = bundles.generated(state["url"], key, answer.prompt, len(answer.tokens))
        assert tokens == answer.tokens
        rows = log_softmax(answer.logits)
        away = [abs(float(row[t]) - s) for row, t, s in zip(rows, tokens, scores, strict=True)]
        largest = max(largest, *away)
    assert largest < 1e-4
    named = {path.name for path in Path("/dev/shm").iterdir()}
    mapped = {
        line.partition("/dev/shm/")[2]
        for pid in one.processes("vllm.entrypoints")
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm/" in line and not line.endswith(" (deleted)")
    }
    assert not named & mapped, "a SIGKILL would leave it"
    if nodes == 2:
        one.kill("vllm.entrypoints.cli.main", "--node-rank 1")
        assert "gpu1: vLLM ended, killed by signal 9" in one.ended()
    else:
        one.run("stop")
        one.ended()


def test_stages_on_cpus_are_healthy_and_never_ready(vllm, tmp_path, reference):
    """vLLM 0.32.0 answers /health, and dies at the first completion: the job ends with its words."""
    bundle = bundles.write(tmp_path / "bundle", reference, pp=2)
    one = vllm(bundle)
    said = one.ended(400)
    assert "KV cache: 16,384 tokens, planned 16,384" in said
    assert "vLLM ended" in said and "ready" not in said
