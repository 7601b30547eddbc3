"""The rooms of the house: who may import whom, how large they grow, and the page that lists them."""

import ast

import pytest

import tour
from conftest import ROOT

LIBRARY = [
    room for room in tour.ROOMS if room.startswith("scripts/ingot/") and room[-6:] != "driver"
]
ORDER = ["ingot", *(room.removeprefix("scripts/").replace("/", ".") for room in LIBRARY)]
LARGEST = {"files": 8, "lines": 1000}
BESIDE = ("refused", "fields", "yaml_text", "entry", "options")  # of ingot, for every room
GROUND, ROOF = (
    "ingot.driver.job",
    "ingot.driver.report",
)  # the driver's own files; and the hook above all


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ingot"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", LIBRARY)
def test_a_room_imports_only_from_rooms_below_it(room):
    here = ORDER.index(room.removeprefix("scripts/").replace("/", "."))
    for path in (ROOT / room).glob("*.py"):
        for name in imported(path):
            if name.startswith(GROUND) or (name.startswith(ROOF) and room.endswith("commands")):
                continue
            found = max((one for one in ORDER if name.startswith(f"{one}.")), key=len)
            if found == "ingot":
                assert name.split(".")[1] in BESIDE, f"{path}: {name}"
            assert ORDER.index(found) <= here, f"{path}: {name} is in a room above"


def test_the_ground_of_the_driver_imports_nothing_of_ours():
    assert not list(imported(ROOT / "scripts/ingot/driver/job.py"))


@pytest.mark.parametrize("room", [*LIBRARY, "scripts/ingot/driver"])
def test_no_room_outgrows_its_plan(room):
    files = [path for path in (ROOT / room).glob("*.py") if path.name != "__init__.py"]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert room.endswith("commands") or len(files) <= LARGEST["files"]
    assert room.endswith("commands") or lines <= LARGEST["lines"], lines


def test_every_room_is_in_the_tour():
    found = {path.parent for path in (ROOT / "scripts/ingot").rglob("*.py")}
    assert {str(path.relative_to(ROOT)) for path in found} <= set(tour.ROOMS)


def test_the_tour_is_what_the_files_say():
    text = (ROOT / "docs/tour.md").read_text()
    assert text == tour.tour(), "run `python docs/tour.py`"
    assert not [line for line in text.splitlines() if line.endswith(": ")], "a file says nothing"


def test_no_two_files_of_tests_share_a_name():
    """Together pytest refuses the second, which alone passes."""
    names = [path.name for path in (ROOT / "tests").glob("*/test_*.py")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
