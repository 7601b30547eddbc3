"""The tests' order: each process is given an equal part, and none begins where another does."""

from pathlib import Path
from types import SimpleNamespace

import conftest


def test_every_test_is_dealt_once_and_one_process_waits_while_the_others_compute():
    def item(name, number):
        return SimpleNamespace(path=Path(f"{name}.py"), number=number)

    files = ("test_a", *conftest.COMPUTING, "test_b", *conftest.WAITING)
    items = [item(name, n) for name in files for n in range(20)]
    for processes in (1, 2, 3, 8):
        found = conftest.dealt(items, processes)
        assert len(found) == len(items) and {*map(id, found)} == {*map(id, items)}
    share = -(-len(items) // 3)
    found = [one.path.stem for one in conftest.dealt(items, 3)]
    assert found[0] in conftest.WAITING and found[share] in conftest.COMPUTING
    assert found[2 * share] in conftest.COMPUTING and found[2 * share] != found[share]
