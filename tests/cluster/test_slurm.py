"""On a real SLURM of two nodes: what is submitted, whose outputs go on record, how a run ends."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

import slurm
from conftest import ROOT, ran
from ingot.files import digest
from ingot.store.records import Store

GGUF, TP2 = "artifacts/demo.gguf", "artifacts/demo_tp2.irpa"
HELD = """
    import os, time
    with open("started", "a") as file:
        file.write(f"{os.environ['SLURM_JOB_ID']} {name}\\n")
    end = time.monotonic() + 120
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.1)
"""  # the step goes on when the test lets it
CORES = """
    import os
    open("cores", "w").write(os.environ["SLURM_CPUS_PER_TASK"])
"""
GREEDY = """
    import os, time
    with open("tries", "a") as file:
        file.write("x")
    if len(open("tries").read()) == 1:
        waste = bytearray(os.urandom(1 << 20)) * 700
        time.sleep(30)
"""  # more memory than it asked for, the first time


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if lacking := slurm.missing():
        pytest.skip(f"SLURM needs {lacking} (Debian: slurmctld slurmd slurm-client munge)")
    with slurm.Slurm(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


@pytest.fixture
def start(cluster, store):
    """start(folder, target) starts the documented command there, and returns its process."""
    started = []

    def run(folder, *targets):
        command = [ROOT / ".venv/bin/snakemake", *targets, "--profile", "slurm"]
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **cluster.environment, "INGOT_STORE": str(store), "INGOT_SUBMIT": "all"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    for job in cluster.jobs():
        cluster.call("scancel", job)


@pytest.fixture
def submit(start, cluster):
    """submit(folder, target): what it said, and how many jobs were submitted."""

    def run(folder, *targets, fails=False):
        before = cluster.submitted()
        process = start(folder, *targets)
        said, _ = process.communicate(timeout=240)
        assert (process.returncode != 0) == fails, said
        return said, cluster.submitted() - before

    return run


def in_the_step(folder, text):
    """Add to the start of the converter's function."""
    script = folder / "scripts/safetensors_to_gguf.py"
    lines = script.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("def safetensors_to_gguf"))
    body = next(n for n, line in enumerate(lines[start:], start) if line.rstrip().endswith("None:"))
    script.write_text("".join([*lines[: body + 1], text, *lines[body + 1 :]]))


def held(folder, start, seconds=90):
    """A run in the middle of its job: the process, and the SLURM job's id."""
    count = (
        len((folder / "started").read_text().splitlines()) if (folder / "started").exists() else 0
    )
    process, end = start(folder, GGUF), time.monotonic() + seconds
    while not (folder / "started").exists() or len(lines(folder)) == count:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, "the job does not start"
        time.sleep(0.1)
    return process, lines(folder)[-1].split()[0]


def lines(folder):
    return (folder / "started").read_text().splitlines()


def rename(folder):
    catalogue = folder / "models.yaml"
    catalogue.write_text(catalogue.read_text().replace("name: Ingot Demo", "name: Another Demo", 1))


def test_without_a_cluster_it_says_so_in_one_line(clone, snakemake, tmp_path):
    folder = clone("a")
    done = snakemake(
        folder, "--profile", "slurm", "--", GGUF,
        environment={"INGOT_SUBMIT": "all", "SLURM_CONF": str(tmp_path / "none")},
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: --profile slurm: sinfo names no partition that is up" in done.stderr


def test_the_documented_line_builds_and_a_fresh_clone_submits_nothing(clone, submit):
    folder = clone("a")
    said, count = submit(folder, TP2, "artifacts/demo.irpa")
    assert ran(said) == {"safetensors_to_gguf", "gguf_to_irpa", "shard_irpa_tp2"} and count == 3
    said, count = submit(clone("b"), TP2)
    assert f"restore  {TP2}" in said and count == 0


def test_each_job_asks_what_its_forecast_says(clone, submit, cluster):
    folder = clone("a")
    in_the_step(folder, CORES)
    submit(folder, GGUF)
    assert (folder / "cores").read_text() == "2", "the step is given what its job was"
    shown = cluster.call("scontrol", "show", "job").split("JobId=")[-1]
    memory = int(re.search(r"mem=(\d+)M", shown)[1])
    assert 300 < memory < 1000 and "TimeLimit=00:10:00" in shown and "Partition=cpu" in shown
    assert "CPUs/Task=2" in shown


def test_what_no_partition_has_is_said_before_anything_is_submitted(clone, submit):
    folder = clone("a")
    path = folder / "scripts/ingot/driver/cluster/ask.py"
    path.write_text(path.read_text().replace("RUNNER = 300", "RUNNER = 900_000"))
    said, count = submit(folder, GGUF, fails=True)
    assert count == 0 and re.search(
        r"demo.gguf: asks 900,\d+ MB, .*expected what a partition has", said
    )


def test_of_a_killed_run_with_other_inputs_nothing_goes_on_record(
    clone, start, submit, store, cluster
):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, job = held(folder, start)
    process.kill()
    rename(folder)
    again = start(folder, GGUF)
    cluster.wait(lambda: len(lines(folder)) == 2 or again.poll() is not None, "the second job", 120)
    (folder / "go").touch()
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert (
        f"{GGUF}: SLURM job {job} of an earlier run builds it of other inputs, and is cancelled"
        in said
    )
    assert b"Another Demo" in (folder / GGUF).read_bytes()[:4096]
    (record,) = Store(store).records("safetensors_to_gguf")
    assert record.outputs[0]["digest"] == f"sha256:{digest.read(folder / GGUF)}"


def test_of_a_killed_run_with_equal_inputs_the_work_is_done_once(clone, start, cluster):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, _ = held(folder, start)
    process.kill()
    before = cluster.submitted()
    again = start(folder, GGUF)
    words = ""
    while "goes on for this one" not in words:
        words += again.stdout.readline()
        assert again.poll() is None, words
    (folder / "go").touch()
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0, words + said
    assert cluster.submitted() == before and len(lines(folder)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_leaves_no_job_and_no_half_written_output(number, clone, start, cluster):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, _ = held(folder, start)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in said, said
    assert "stopped: SLURM jobs cancelled: 1, none is left" in said
    assert cluster.jobs() == [] and not list(folder.glob("artifacts/*"))


def test_a_step_that_fails_is_not_tried_again(clone, submit):
    folder = clone("a")
    config = folder / "models/demo/config.json"
    config.write_text(config.read_text().replace('"silu"', '"gelu"'))
    said, count = submit(folder, GGUF, fails=True)
    assert count == 1
    after = said.partition(f"start    {GGUF}")[2].splitlines()[2:]
    assert "hidden_act is gelu, expected silu" in said and len(after) <= 6, said


def test_a_job_that_ran_out_of_memory_is_tried_again_with_twice_as_much(clone, submit, cluster):
    folder = clone("a")
    in_the_step(folder, GREEDY)
    said, count = submit(folder, GGUF)
    asked = [
        int(m) for m in re.findall(r"mem=(\d+)M", cluster.call("scontrol", "show", "job"))[-2:]
    ]
    assert count == 2 and asked[1] == pytest.approx(2 * asked[0], abs=2)
    assert re.search(r"SLURM job \d+ on cpu1: more memory than the \d+M it asked for", said)
