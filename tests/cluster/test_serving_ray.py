"""vLLM's ranks by Ray over two nodes of a real SLURM: a real Ray, and vLLM's stand-in that asks for GPUs.

vLLM itself does not take Ray on CPUs.
"""

import json
import os
import signal
from pathlib import Path

import pytest
from test_serving import Job

import apart
import bundles
import slurm
from ingot.base.refused import Refused

HANGS = """
import sys, time
if "ray.scripts.scripts" in sys.orig_argv:
    time.sleep(600)
"""
pytestmark = pytest.mark.root("a network of its own, since Ray listens on every address")
READY = 150  # seconds: Ray starts twice on this machine, and once more to be counted


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Each with GPUs, in a network of their own: Ray listens on every address."""
    slurm.skip_where_missing()
    folder = tmp_path_factory.mktemp("ray") / "cluster"
    with (
        apart.network(),
        slurm.Slurm(folder, cpu="cpu1,gpu1", kill_wait=5, cpu_gpus=" Gres=gpu:h100:8") as found,
    ):
        yield found


@pytest.fixture
def job(two_nodes, tmp_path, python):
    """job() submits a bundle for a GPU on each of two nodes, executor ray."""
    found = []

    def run(second=None, site=None, **said) -> Job:
        bundle = bundles.write(
            tmp_path / "bundle", bundles.reference(tmp_path), tp=1, pp=2, nodes=2, executor="ray",
            device="sm90", memory=80,
        )  # fmt: skip
        path = bundles.standin(tmp_path / "site", ray=None)
        own = bundles.python(path, path, interpreter=python("rayserve"), **(second or {}))
        site = {"gpu": "h100", "cpus": "4", "mem": "8000M", **(site or {})}
        found.append(Job(two_nodes, tmp_path / "job", bundle, own, site, said))
        return found[-1].submit()

    yield run
    for one in found:
        if hasattr(one, "id"):
            two_nodes.call("scancel", one.id)


def of_ray(job):
    """The processes of Ray by the node whose program started them: `ray start`, and all of its own."""
    found = {0: [], 1: []}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SLURM_JOB_ID={job.id}".encode() in words and b"SPT_NOENV=1" in words:
            rank = next(int(word[13:]) for word in words if word.startswith(b"SLURM_NODEID="))
            found[rank].append(int(path.parent.name))
    return found


def raylets(job, rank):
    return [
        pid
        for pid in of_ray(job)[rank]
        if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def gone(job):
    assert of_ray(job) == {0: [], 1: []}
    assert not list(Path("/dev/shm").glob("ingot_*"))


@pytest.mark.slow
def test_ranks_lie_on_both_nodes_and_a_stop_leaves_nothing(job):
    one = job().until("ready after", READY)
    assert "Ray has all 2 nodes and 2 GPUs" in one.log
    said = (one.folder / "state" / one.id / "vllm-0.log").read_text()
    ranks = json.loads(said.partition("RANKS")[2].splitlines()[0])
    assert len(ranks) == len({rank["node"] for rank in ranks}) == 2
    assert {rank["host"] for rank in ranks} == {"127.0.0.1"}
    token = (one.folder / "state" / one.id / "key").read_text()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        assert token.encode() not in path.read_bytes(), "a key in an argument"
    assert "./connect" in one.log and one.run("smoke").returncode == 0
    one.cluster.call("scancel", one.id)
    assert "stopped by SIGTERM" in one.ended()
    gone(one)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_ray_ends_the_job(job, rank):
    one = job().until("ready after", READY)
    for pid in raylets(one, rank):
        os.kill(pid, signal.SIGKILL)
    said = one.ended()
    assert "Ray ended" in said and ("gpu1: Ray ended" in said) == bool(rank), said
    gone(one)


@pytest.mark.slow
def test_a_node_that_is_not_in_rays_cluster_is_named(job, tmp_path):
    other = bundles.standin(tmp_path / "other", ray=None)
    (other / "sitecustomize.py").write_text(HANGS)
    one = job(second={"other": other}, site={"meet_seconds": 20})
    assert "gpu1: not in Ray's cluster after 20 s; its words:" in one.ended(60)
    gone(one)


def test_on_cpus_it_is_refused(tmp_path):
    with pytest.raises(Refused, match="expected mp: on CPUs vLLM does not take Ray"):
        bundles.write(tmp_path / "b", None, executor="ray")
