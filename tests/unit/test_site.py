"""The site file: what it says, and one line for what it cannot say."""

import os

import pytest

from ingot.base.refused import Refused
from ingot.driver.catalogue import site
from ingot.driver.snakemake.cluster import ask


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(text) is the site file of this text."""
    monkeypatch.setenv("INGOT_SITE", str(tmp_path / "site.yaml"))
    return (tmp_path / "site.yaml").write_text


def test_without_a_site_file_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("INGOT_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert site.read() == site.Site()


def test_the_environment_wins_over_the_site_file(written, monkeypatch):
    monkeypatch.setenv("INGOT_STORE", "/mine")
    monkeypatch.setenv("INGOT_ENVS", "")
    monkeypatch.delenv("INGOT_ENVS")
    monkeypatch.delenv("SBATCH_RESERVATION", raising=False)
    written("{store: /shared/store, envs: /shared/envs, reservation: nightly}")
    assert site.apply().store == "/shared/store"
    assert (os.environ["INGOT_STORE"], os.environ["INGOT_ENVS"]) == ("/mine", "/shared/envs")
    assert os.environ.pop("SBATCH_RESERVATION") == "nightly", "which sbatch reads"


@pytest.mark.parametrize(
    "text, said",
    [("partition: {cpu: a}", "partition: .*expected one of account, store, envs, remote"),
     ("partitions: {cpus: a}", "partitions.cpus: 'a', expected a name for one of cpu, bigmem, gpu, net"),
     ("partitions: {cpu: 1}", "partitions.cpu: 1, expected a name"),
     ("store: here", "expected an absolute path"),
     ("- a", "holds a list"), ("a: [", "not YAML"), ("account: 7", "account: 7, expected one of")],
)  # fmt: skip
def test_what_no_site_file_says_is_refused_in_one_line(text, said, written):
    written(text)
    with pytest.raises(Refused, match=said) as refusal:
        site.read()
    assert "\n" not in str(refusal.value)


def test_a_site_file_that_is_named_and_missing_is_refused(monkeypatch):
    monkeypatch.setenv("INGOT_SITE", "/none/site.yaml")
    with pytest.raises(Refused, match=r"/none/site\.yaml: missing"):
        site.read()


FAST, FAT = ask.Partition("fast", 8_000, 8, 0, 60), ask.Partition("fat", 900_000, 8, 0)
WANTED = ask.Ask(memory_mb=2_000, minutes=10, cores=2, disk_mb=1, gpus=0)


@pytest.mark.parametrize(
    "names, memory, found",
    [({"cpu": "fat"}, 2_000, "fat"), ({"cpu": "fast", "bigmem": "fat"}, 2_000, "fast"),
     ({"cpu": "fast", "bigmem": "fat"}, 20_000, "fat"), ({"gpu": "x"}, 2_000, "fast")],
)  # fmt: skip
def test_jobs_go_where_the_site_file_says(names, memory, found):
    wanted = ask.Ask(memory, 10, 2, 1, 0)
    assert ask.choose(wanted, [FAST, FAT], "m", "cpu", names)[1].name == found


def test_a_partition_that_nobody_has_is_refused():
    with pytest.raises(Refused, match="names partition none, which sinfo does not"):
        ask.choose(WANTED, [FAST], "m", "cpu", {"cpu": "none"})
