"""On a real SLURM of two nodes: what is submitted, whose outputs go on record, how a run ends."""

import json
import re
import signal
import time

import pytest

import checkpoints
import slurm
from conftest import ran
from ingot.base import digest
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


def after(said):
    """What a person reads once the job has started."""
    return said.partition(f"start    {GGUF}")[2].splitlines()[2:]


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
    path = folder / "scripts/ingot/driver/snakemake/cluster/ask.py"
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


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGHUP,)],
    ids=["Ctrl-C", "Ctrl-C twice", "SIGTERM", "a closed terminal"],
)
def test_a_stopped_run_leaves_no_job_and_no_half_written_output(numbers, clone, start, cluster):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, _ = held(folder, start)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.5)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in said, said
    assert "stopped: SLURM jobs cancelled: 1, none is left" in said
    assert cluster.jobs() == [] and not list(folder.glob("artifacts/*"))


def test_a_step_that_fails_is_not_tried_again(clone, submit):
    folder = clone("a")
    checkpoints.of_another_size(folder / "models/demo")
    said, count = submit(folder, GGUF, fails=True)
    assert count == 1
    assert checkpoints.OTHER_SIZE in said and len(after(said)) <= 6, said


def test_a_job_that_ran_out_of_memory_is_tried_again_with_twice_as_much(clone, submit, cluster):
    folder = clone("a")
    in_the_step(folder, GREEDY)
    said, count = submit(folder, GGUF)
    asked = [
        int(m) for m in re.findall(r"mem=(\d+)M", cluster.call("scontrol", "show", "job"))[-2:]
    ]
    assert count == 2 and asked[1] == pytest.approx(2 * asked[0], abs=2)
    assert re.search(r"SLURM job \d+ on cpu1: more memory than the \d+M it asked for", said)


def test_a_job_that_can_never_start_is_named(clone, start, cluster):
    folder = clone("a")
    process = start(folder, GGUF, "--set-resources", "safetensors_to_gguf:runtime=600")
    words = ""
    while "PartitionTimeLimit" not in words and process.poll() is None:
        words += process.stdout.readline()
    said = words.splitlines()[-1]
    assert re.fullmatch(
        rf"waits    {GGUF}: SLURM job \d+ cannot start \(PartitionTimeLimit\), .*scontrol .*", said
    )
    process.send_signal(signal.SIGTERM)
    assert "none is left" in process.communicate(timeout=60)[0] and cluster.jobs() == []


def test_a_job_that_an_administrator_cancels_is_not_tried_again(clone, start, cluster):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, job = held(folder, start)
    cluster.call("scancel", job)
    said, _ = process.communicate(timeout=120)
    assert (
        process.returncode == 1 and f"SLURM job {job} on cpu1: cancelled by somebody else" in said
    )
    assert len(after(said)) <= 5, said
    assert len(lines(folder)) == 1 and cluster.jobs() == []
    assert not list(folder.glob("artifacts/*"))


def test_a_job_beyond_its_time_limit_is_tried_again_with_twice_as_much(clone, start, cluster):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, job = held(folder, start)
    cluster.call("scontrol", "update", f"jobid={job}", "timelimit=1")
    cluster.wait(lambda: len(lines(folder)) == 2, "the second try", 240)
    (folder / "go").touch()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "longer than the 00:01:00 it asked for" in said
    again = lines(folder)[1].split()[0]
    assert "TimeLimit=00:20:00" in cluster.call("scontrol", "show", "job", again)


def test_a_job_whose_node_fails_is_tried_again_elsewhere(clone, start, tmp_path):
    with slurm.Slurm(tmp_path / "slurm", cpu="cpu1,gpu1") as own:
        folder = clone("a")
        in_the_step(folder, HELD)
        process, job = held(folder, lambda *words: start(folder, GGUF, **own.environment))
        node = re.search(r" NodeList=(\w+)", own.call("scontrol", "show", "job", job))[1]
        own.kill(node)
        own.wait(lambda: len(lines(folder)) == 2, "the second try", 120)
        (folder / "go").touch()
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert f"SLURM job {job} on {node}: its node failed (NODE_FAIL)" in said


def test_a_lost_controller_is_waited_for(clone, start, tmp_path):
    with slurm.Slurm(tmp_path / "slurm") as own:
        folder = clone("a")
        in_the_step(folder, HELD)
        process, _ = held(folder, lambda *words: start(folder, GGUF, **own.environment))
        own.controller.kill()
        own.controller.wait()
        (folder / "go").touch()
        time.sleep(10)  # the step ends, and nobody hears of it
        own.start("slurmctld", "-D", "-f", own.conf)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and f"done     {GGUF}" in said, said


def test_status_says_what_runs_from_another_terminal(clone, start, cluster, ingot):
    folder = clone("a")
    in_the_step(folder, HELD)
    process, job = held(folder, start)
    said = lambda: ingot("status", cwd=folder, environment=cluster.environment).stdout  # noqa: E731
    cluster.wait(lambda: f"SLURM job {job} on cpu1" in said(), "status")
    header, line = said().splitlines()
    assert re.match(r"run of \d\d:\d\d \(pid \d+ on .*1 job done, 1 running", header)
    assert re.match(rf"runs     {GGUF}  \d+ s of about .*  SLURM job {job} on cpu1", line)
    (folder / "go").touch()
    process.communicate(timeout=120)
    assert "no run is alive" in said()


def test_what_was_asked_and_used_goes_on_record_without_a_host_s_name(clone, submit, store):
    submit(clone("a"), GGUF)
    found = Store(store)
    (record,) = found.records("safetensors_to_gguf")
    cost = found.config(record)["cost"]
    assert cost["asked"]["memory_mb"] > 300 and cost["asked"]["minutes"] == 10
    assert cost["cores"] == cost["asked"]["cores"] == 2
    assert "node" not in cost and "cpu1" not in json.dumps(found.config(record))
    assert cost["peak_rss_mb"] > 10 and cost["seconds"] > 0
