"""Each test is run once, and each process begins with those that are its own."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import queues

TESTS = Path(__file__).resolve().parents[1]
NAMES = [name for names in queues.FIRST for name in names]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5, 40])
def test_no_test_is_lost_and_each_process_begins_with_its_own(processes):
    names = [*(f"test_{n}" for n in range(90)), *NAMES]
    items = [SimpleNamespace(path=Path(f"{name}.py"), n=n) for name in names for n in range(7)]
    found = queues.ordered([*items], processes)
    assert sorted(map(id, found)) == sorted(map(id, items))
    left, at, heads = len(found), 0, []
    for number in range(min(processes, len(queues.FIRST))):
        heads.append(found[at].path.stem)
        at, left = (at + left // (processes - number), left - left // (processes - number))
    if processes <= len(queues.FIRST):
        assert heads == [names[0] for names in queues.FIRST[:processes]]


def test_what_comes_first_is_there():
    assert {*NAMES} <= {path.stem for path in TESTS.rglob("test_*.py")}
