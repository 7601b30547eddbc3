"""`ingot doctor` on broken sites of a real SLURM: each fault is one line, with its remedy."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import slurm
from conftest import ROOT
from ingot.driver.snakemake.health import doctor, node
from ingot.driver.toolchains import toolchains

GGUF, ENGINE = "artifacts/demo.gguf", "artifacts/demo_tp1.trtllm"


@pytest.fixture
def examine(cluster, clone, store, tmp_path):
    """examine(target) runs the command in a clone; its exit status, and the lines of faults."""
    clone("a")

    def run(*targets, site="", environment=None):
        (tmp_path / "site.yaml").write_text(site)
        done = subprocess.run(
            [ROOT / ".venv/bin/ingot", "doctor", *targets], cwd=tmp_path / "a",
            env={**os.environ, **cluster.environment, "INGOT_STORE": str(store),
                 "INGOT_SUBMIT": "all", "INGOT_SITE": str(tmp_path / "site.yaml"), **(environment or {})},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stderr.splitlines()

    return run


@pytest.fixture
def broken():
    """broken(hidden=..., min_job_age=...) is the environment of a cluster of that kind.

    In a folder of a short name: a step's socket below it has 107 bytes, and pytest's own have too many
    on its hundredth run of a machine.
    """
    with contextlib.ExitStack() as stack:

        def start(**how):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
            return stack.enter_context(slurm.Slurm(Path(folder, "c"), **how)).environment

        yield start


def test_a_sound_site_is_said_to_be_sound(examine):
    assert examine(GGUF) == (0, [])


def test_no_controller(examine, tmp_path):
    status, (line,) = examine(GGUF, environment={"SLURM_CONF": str(tmp_path / "none")})
    assert status == 1 and "sinfo names no partition that is up" in line


def test_a_store_that_nodes_do_not_see(examine, broken, store):
    store.mkdir()
    status, (line,) = examine(GGUF, environment=broken(hidden=store))
    assert status == 1
    assert line.startswith(f"{store}: is another folder on node") and "set INGOT_STORE" in line
    assert not list(store.glob(".doctor*")), "nothing is left there"


def test_toolchains_that_nodes_do_not_see(examine, broken, tmp_path):
    envs, place = tmp_path / "envs", toolchains.build(ROOT, "slurm")
    envs.mkdir()
    (envs / place.name).symlink_to(place)
    here = {**broken(hidden=envs), "INGOT_ENVS": str(envs)}
    status, (line,) = examine(GGUF, environment=here)
    assert status == 1 and line.startswith(f"{envs}: not seen on node") and "INGOT_ENVS" in line


def test_a_working_folder_that_nodes_do_not_see(examine, broken, tmp_path):
    status, (line,) = examine(GGUF, environment=broken(hidden=tmp_path / "a"))
    assert status == 1 and line.startswith(f"{tmp_path / 'a'}: not seen on node")


def test_jobs_that_are_forgotten_before_they_are_looked_for(examine, broken):
    status, (line,) = examine(GGUF, environment=broken(min_job_age=10))
    assert status == 1 and line.startswith("MinJobAge: 10 s and no accounting, expected 60 s")


def test_a_partition_that_the_site_file_misspells(examine, tmp_path):
    status, lines = examine(GGUF, site="partitions: {cpu: cpus}\n")
    assert status == 1
    assert f"{tmp_path}/site.yaml: partitions.cpu: cpus, expected one of cpu, gpu" in lines


def test_what_a_node_lacks_for_its_jobs(examine):
    status, (line,) = examine(ENGINE)
    assert status == 1 and line.startswith(f"{ENGINE}: on node ") and "(partition gpu)" in line
    assert "building an engine needs an NVIDIA GPU and this machine has none" in line


def test_a_node_says_what_it_does_not_see_and_cannot_write(tmp_path):
    asked = {"seen": ["/none"], "write": ["/none/file", str(tmp_path / "file")], "needs": {}}
    found = node.answer(asked)
    assert found["unseen"] == ["/none"] and found["unwritten"] == ["/none/file"]
    assert (tmp_path / "file").exists()


def test_a_run_looks_once(submit, clone, store, tmp_path):
    folder = clone("b")
    said, _ = submit(folder, GGUF)
    assert "first use of cpu: looking at the site, as `ingot doctor` does" in said
    assert list((folder / doctor.FOLDER).glob("*.sound"))
    (folder / GGUF).unlink()
    said, _ = submit(folder, GGUF, "--forceall")
    assert "first use" not in said


def test_a_mistake_in_the_site_file_is_one_line(examine):
    status, lines = examine(GGUF, site="partition: {cpu: a}\n")
    assert (
        status == 1 and len(lines) == 1 and "partition: {'cpu': 'a'}, expected one of" in lines[0]
    )


def test_a_run_with_a_mistake_in_the_site_file_ends_in_one_line(clone, snakemake, tmp_path):
    (tmp_path / "site.yaml").write_text("store: here\n")
    named = {"INGOT_SITE": str(tmp_path / "site.yaml")}
    done = snakemake(clone("c"), "--profile", "slurm", "--", GGUF, environment=named)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}/site.yaml: store: here, expected an absolute path"
    ]


def test_a_read_only_store_that_nodes_see_is_sound(clone, examine, store, monkeypatch):
    store.mkdir()
    (store / "oci-layout").touch()
    real = os.access
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: path != store and real(path, mode))
    with doctor.asking([]) as (question, _, written):
        assert written == [] and f"{store}/oci-layout" in question.read_text()


def test_a_partition_that_is_busy_is_not_called_sound(broken, examine):
    here = broken()
    words = ["sbatch", "--exclusive", "--chdir=/", "--output=/dev/null", "--wrap", "sleep 60"]
    subprocess.run(words, env={**os.environ, **here}, check=True, capture_output=True)
    status, (line,) = examine(GGUF, "--wait", "3", environment=here)
    assert status == 0 and line == "partition cpu: busy (Resources), not looked at"
