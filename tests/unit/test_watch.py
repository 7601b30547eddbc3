"""What is said of jobs while they wait and run, from what squeue and their logs say."""

import subprocess
import sys
import time

import pytest

from conftest import ROOT
from ingot.driver.catalogue.job import Graph, Job, Output
from ingot.driver.forecast import schedule
from ingot.driver.forecast.costs import Forecast
from ingot.driver.show import status
from ingot.driver.snakemake.cluster import slurm, watch

OUTPUT = "artifacts/m.gguf"


@pytest.fixture
def listed(monkeypatch):
    """listed("7|PENDING|Priority|") is what squeue says from now on."""
    said = {"squeue": "", "scontrol": ""}
    monkeypatch.setattr(slurm, "call", lambda program, *_, **__: said[program])
    header = "JOBID|STATE|REASON|NODELIST\n"
    return lambda text, shown="": said.update(squeue=text and header + text, scontrol=shown)


def test_each_change_is_said_once(listed, tmp_path, capsys):
    log, found = tmp_path / "log", watch.Watch()
    jobs = {"7": (OUTPUT, log)}
    limit = "7|PENDING|QOSMaxJobsPerUserLimit|"
    for row in ("7|PENDING|Resources|", limit, limit, "7|RUNNING|None|n1"):
        listed(row)
        assert found.look(jobs) == set()
    log.write_text("a line\nm.gguf:  40 %  4.0 of 10.0 MB  2 MB/s  3 s left\n")
    found.look(jobs)
    assert capsys.readouterr().err.splitlines() == [
        f"waits    {OUTPUT}: SLURM job 7 (QOSMaxJobsPerUserLimit)",
        "runs     m.gguf:  40 %  4.0 of 10.0 MB  2 MB/s  3 s left  (SLURM job 7 on n1)",
    ]


@pytest.mark.parametrize(
    "reason, never",
    [("PartitionTimeLimit", True), ("AssocMaxCpuMinutesPerJobLimit", True), ("JobHeldAdmin", True),
     ("ReqNodeNotAvail, UnavailableNodes:n1", True), ("Priority", False), ("AssocGrpCpuLimit", False)],
)  # fmt: skip
def test_what_does_not_pass_by_itself_is_named(reason, never, tmp_path):
    said = watch.line("7", OUTPUT, watch.Seen("PENDING", reason, ""), tmp_path / "log")
    assert ("cannot start" in said) == never


def test_a_job_that_slurm_has_forgotten_is_noticed_after_three_looks(listed, tmp_path):
    found, jobs = watch.Watch(), {"7": (OUTPUT, tmp_path / "log")}
    listed("")  # no controller answers: nothing is concluded
    assert not any(found.look(jobs) for _ in range(9))
    listed(" ")  # one answers, and has no job
    assert [found.look(jobs) for _ in range(3)] == [set(), set(), {"7"}]
    listed("8|RUNNING|None|n1", "JobId=7 JobState=COMPLETED")
    assert found.look(jobs) == set(), "it is known by another command"


def test_status_is_of_the_last_job_to_start_or_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert status.read() is None and not status.alive()
    found, job = status.Status(run="a"), Job("convert", outputs=(Output("", OUTPUT),))
    expected = Forecast("convert", "", 1.0, 60.0, 0, {})
    found.started(job, "logs/convert.log", expected)
    assert status.read().running[OUTPUT]["expected"] == 60.0
    found.stopped(job, "logs/convert.log")
    assert status.read().failed == {OUTPUT: "logs/convert.log"} and not status.read().running
    found.started(job, "", None)
    found.finished(job, 3)
    assert (status.read().done, status.read().left, status.read().failed) == (1, 3, {})


def test_a_run_takes_as_long_as_its_longest_way_or_its_work_over_the_cores():
    a, b, c = (Job(name, outputs=(Output("", name),)) for name in "abc")
    graph = Graph([a, b, c], needs={b: {a: {"a"}}})
    takes = {a: 10.0, b: 5.0, c: 12.0}.get
    assert schedule.length(graph, [a, b, c], takes, 9) == 15
    assert schedule.length(graph, [a, b, c], takes, 1) == 27
    assert schedule.length(graph, [b, c], takes, 9) == 12
    assert schedule.length(graph, [a, b, c], {a: 1.0}.get, 9) is None


DEAF = """
import signal, sys, threading, time
sys.path.insert(0, {scripts!r})
from ingot.base import processes

def told(*_):
    print("told", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, told)
if {heed}:
    processes.heed()
def send():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # as the system may: not to the main thread
threading.Thread(target=send, daemon=True).start()
held = threading.Lock()
held.acquire()
held.acquire(timeout=8)
"""


@pytest.mark.parametrize("heed", [True, False])
def test_a_signal_that_another_thread_is_given_is_acted_on_at_once(heed):
    program = DEAF.format(scripts=str(ROOT / "scripts"), heed=heed)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "told\n")
    assert (time.monotonic() - began < 5) == heed, "Python itself acts when the lock is given up"
