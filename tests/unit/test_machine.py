"""What a machine has: less where a control group, its own or one above, sets a limit."""

import math
from types import SimpleNamespace

import pytest

from ingot.base import machine
from ingot.driver.snakemake import memory

GB = 10**9


@pytest.fixture
def group(tmp_path, monkeypatch):
    """group("a/b", max=..., current=..., stat=...) writes a group's files; this process is in job/step."""
    groups = tmp_path / "cgroup"
    (tmp_path / "own").write_text("1:name=old:/elsewhere\n0::/job/step\n")
    monkeypatch.setattr(machine, "GROUPS", groups)
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")

    def write(name, **files):
        (groups / name).mkdir(parents=True, exist_ok=True)
        for file, said in files.items():
            (groups / name / f"memory.{file}").write_text(f"{said}\n")

    write("")
    return write


def test_the_memory_of_a_machine_is_that_of_the_narrowest_group(group):
    whole = machine.memory()
    assert machine.available() <= whole
    for said, found in ((3 * GB, 3 * GB), ("max", whole), (1 << 60, whole)):
        group("job", max=said)
        assert machine.memory() == found
    group("job/step", max=2 * GB)
    group("job", max=3 * GB)
    assert machine.memory() == 2 * GB
    group("", max=GB)
    assert machine.memory() == GB, "as in a container, where its own group is the root"


def test_free_is_what_a_group_does_not_hold_but_what_it_caches(group):
    group("job", max=10**8, current=7 * 10**7, stat="anon 1\ninactive_file 10000000")
    assert (machine.memory(), machine.available()) == (10**8, 4 * 10**7)
    group("job/step", max=9 * 10**7, current=10**8, stat="")
    assert machine.available() == 0


def test_a_machine_without_such_files_is_whole(tmp_path, monkeypatch):
    for name in ("GROUPS", "OWN", "FREE"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    assert machine.available() == machine.memory() > 0


def test_what_may_have_to_wait_for_memory_is_said(group):
    group("job", max=8 * GB)
    two = [("a", 3 * GB), ("b", 4 * GB), ("c", GB)]
    room = memory.Room
    assert memory.said(two, room(2, math.inf)) == memory.said(two, room(2, 7 * GB)) == ""
    assert memory.said([], room(2, GB)) == memory.said(two, room(1, 5 * GB)) == ""
    assert memory.said(two, room(2, 6 * GB)).startswith("6 GB of memory are free: jobs")
    large = memory.said([*two, ("d", 9 * GB)], room(2, 6 * GB))
    assert large.startswith(
        "d: takes some 9 GB of memory, and this machine has 8 GB; the kernel may end it"
    )


@pytest.mark.parametrize("cores, nodes, here, expected", [
    (3, None, True, (3, 10**6)),  # nothing is free: jobs run in turn, each takes all that is counted
    (None, 50, False, (50, math.inf)),
    (8, 1, True, (1, 10**6)),
    (None, None, True, (machine.cores(), 10**6)),
])  # fmt: skip
def test_the_room_for_jobs_is_that_of_the_command_line(group, cores, nodes, here, expected):
    group("job", max=10**8, current=10**8, stat="")
    settings = SimpleNamespace(cores=cores, nodes=nodes)
    workflow = SimpleNamespace(resource_settings=settings, local_exec=here, global_resources={})
    assert memory.room(workflow, None) == expected
