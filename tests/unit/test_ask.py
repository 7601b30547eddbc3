"""What a job asks of a cluster, from its forecast alone."""

import sys
from types import SimpleNamespace

import pytest

import snakemake_executor_plugin_ingot as plugins
from ingot.base.refused import Refused
from ingot.driver.forecast.costs import Forecast
from ingot.driver.snakemake.cluster import ask, slurm

CPU = ask.Partition("cpu", 8_000, 4, 0, 60)
BIG = ask.Partition("bigmem", 900_000, 64, 0)
GPU = ask.Partition("gpu", 500_000, 32, 4, 120)


def forecast(seconds=100.0, memory=0.9e9, gpus=0, download=0):
    return Forecast("step", "", 1.0, seconds, int(memory), {"a": 2_000_000}, download, gpus)


def test_a_job_asks_its_forecast_and_what_runs_it():
    found = ask.of("gguf_to_irpa", forecast())
    assert found == ask.Ask(memory_mb=1_425, minutes=10, cores=2, disk_mb=2, gpus=0)
    assert ask.of("gguf_to_irpa", forecast(), more_memory=2).memory_mb == 2_850
    assert ask.of("x", forecast(seconds=6000), more_time=2).minutes == 600


@pytest.mark.parametrize(
    "wanted, name",
    [(forecast(), "cpu"), (forecast(memory=100e9), "bigmem"), (forecast(gpus=2), "gpu"),
     (forecast(seconds=9000), "bigmem")],
)  # fmt: skip
def test_the_smallest_partition_that_has_it_is_chosen(wanted, name):
    found, partition = ask.choose(ask.of("x", wanted), [GPU, CPU, BIG], "artifacts/m")
    assert partition.name == name and found.cores <= partition.cores


def test_a_second_try_after_a_timeout_asks_for_more_time():
    """60, then 60 again, then 288: the first partition that could be cut to was taken."""
    first = ask.of("x", forecast(seconds=2000))
    assert ask.choose(first, [CPU, BIG], "m")[0].minutes == 60
    second = ask.of("x", forecast(seconds=2000), more_time=2)
    found, partition = ask.choose(second, [CPU, BIG], "m", again=True)
    assert (found.minutes, partition.name) == (200, "bigmem")
    assert ask.choose(second, [CPU, GPU], "m", again=True)[0].minutes == 120


def test_what_no_partition_has_is_refused_before_it_is_submitted():
    with pytest.raises(
        Refused, match=r"asks 2,500,300 MB.*expected what a partition has \(cpu: 8,000"
    ):
        ask.choose(ask.of("x", forecast(memory=2e12)), [CPU, BIG], "artifacts/m.vmfb")
    assert ask.choose(ask.of("x", forecast()), [], "m")[1] is None


def test_short_jobs_and_downloads_are_done_where_snakemake_runs():
    assert ask.here(forecast(seconds=5)) and ask.here(forecast(seconds=900, download=1))
    assert (
        not ask.here(forecast())
        and not ask.here(forecast(seconds=5, gpus=1))
        and not ask.here(None)
    )


def test_partitions_are_read_as_sinfo_gives_them():
    lines = (
        "gpu|2-00:00:00|500000+|32|gpu:h100:4(S:0)|up",
        "cpu*|1:00:00|8000|8|(null)|up",
        "old|infinite|1|1|(null)|down",
    )
    assert slurm.parsed("\n".join(lines)) == [
        ask.Partition("cpu", 8000, 8, 0, 60), ask.Partition("gpu", 500000, 32, 4, 2880),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line, found",
    [("/v/bin/python /v/bin/snakemake artifacts/m --profile slurm", {"slurm"}),
     ("python -m snakemake --executor=slurm-jobstep --mode remote", {"slurm"}),
     ("snakemake --profile /site/slurm/ artifacts/m", {"slurm"}),
     ("snakemake artifacts/slurm.gguf", set()), ("python -m venv envs/slurm", set())],
)  # fmt: skip
def test_plugins_are_on_the_path_only_where_the_command_names_them(line, found):
    assert plugins.asked(line.split()) == found


def test_what_a_plugin_imports_for_nothing_is_imported_when_it_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "colorsys", plugins.Later("colorsys"))
    import colorsys as late

    assert type(late) is plugins.Later
    assert (
        late.rgb_to_hsv(0, 0, 0) == (0, 0, 0) and type(sys.modules["colorsys"]) is not plugins.Later
    )


SHOWN = "JobId=7 JobState={} ExitCode=1:0 TimeLimit=00:10:00 NodeList=n3 TRES=cpu=2,mem=350M"
ENDS = [
    ("FAILED", "StepId=7.batch exceeded memory limit (712000000 > 367001600)", "memory",
     "more memory than the 350M it asked for: 712 MB"),
    ("OUT_OF_MEMORY", "", "memory", "more memory than the 350M it asked for"),
    ("TIMEOUT", "", "time", "longer than the 00:10:00 it asked for"),
    ("NODE_FAIL", "", "node", "its node failed (NODE_FAIL)"),
    ("CANCELLED", "", "cancelled", "cancelled by somebody else"),
    ("FAILED", "the room is full: limit exceeded", "step", "ended with status 1"),
]  # fmt: skip


@pytest.mark.parametrize("state, log, cause, words", ENDS)
def test_why_a_job_of_slurm_ended(state, log, cause, words, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "call", lambda *_: SHOWN.format(state))
    (tmp_path / "log").write_text(f"first\n{log}\n")
    assert slurm.failure("7", tmp_path / "log") == (cause, f"SLURM job 7 on n3: {words}")


def test_a_run_that_ends_cancels_what_it_submitted_whatever_snakemake_knows(monkeypatch, capsys):
    """Snakemake empties its list of jobs while it asks SLURM for their states."""
    states, said = {"7": "RUNNING", "8": "COMPLETED", "9": "PENDING"}, []

    def call(command, *words):
        said.append((command, *words))
        if command == "scancel":
            states.update({one: "CANCELLED" for one in words if states.get(one) in slurm.ALIVE})
        return "\n".join(f"{one}|{state}" for one, state in states.items())

    monkeypatch.setattr(slurm, "call", call)
    monkeypatch.setattr(slurm.signal, "signal", lambda *_: None)
    cluster = SimpleNamespace(submitted=["7", "8", "9"])
    executor = SimpleNamespace(
        run_uuid="u",
        _job_submission_executor=SimpleNamespace(shutdown=lambda wait: None),
        workflow=SimpleNamespace(dag=SimpleNamespace(ingot=SimpleNamespace(cluster=cluster))),
    )
    slurm.cancel_jobs(executor, [])
    assert "SLURM jobs cancelled: 2, none is left" in capsys.readouterr().err
    assert ("scancel", "--name", "u") in said and set(states.values()) == {"CANCELLED", "COMPLETED"}
