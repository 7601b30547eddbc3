"""The rooms of the house: who may import whom, how many there are, and the page that lists them."""

import ast
import functools

import pytest

import tour
from conftest import ROOT

ROOMS = [room for room in tour.ROOMS if room.startswith("scripts/ingot/")]  # from the ground up
FILES = sorted(
    path for path in (ROOT / "scripts/ingot").rglob("*.py") if path.name != "__init__.py"
)
MOST = {"rooms": 20, "arrows": 80, "lines of a file": 600}


def module(path):
    return ".".join(path.relative_to(ROOT / "scripts").with_suffix("").parts)


MODULES = {module(path): path for path in FILES}


@functools.cache
def imported(path):
    """The files of ours that a file imports."""
    named = [
        (node.module, f"{node.module}.{alias.name}")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ingot")
        for alias in node.names
    ]
    return {MODULES[name if name in MODULES else module] for module, name in named}


def room_of(path):
    inside = str(path.relative_to(ROOT))
    return next((room for room in ROOMS if inside.startswith(f"{room}/")), "")


@functools.cache
def arrows():
    return {(room_of(path), room_of(other)) for path in FILES for other in imported(path)}


def test_every_file_is_in_a_room():
    assert not [path for path in FILES if not room_of(path)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_below_it(room):
    above = ROOMS[ROOMS.index(room) + 1 :]
    assert [there for here, there in arrows() if here == room and there in above] == []


def test_the_house_is_seen_at_a_glance():
    between = {arrow for arrow in arrows() if arrow[0] != arrow[1]}
    assert len(ROOMS) <= MOST["rooms"] and len(between) <= MOST["arrows"], len(between)
    longest = max(FILES, key=lambda path: len(path.read_text().splitlines()))
    assert len(longest.read_text().splitlines()) <= MOST["lines of a file"], longest


def test_no_file_imports_itself_by_way_of_others():
    left = {path: imported(path) - {path} for path in FILES}
    while ground := [path for path, needs in left.items() if not needs & left.keys()]:
        for path in ground:
            del left[path]
    assert not left, sorted(map(module, left))


def test_a_job_and_the_runtime_import_nothing_of_ours():
    for path in (ROOT / "scripts/ingot/driver/catalogue/job.py", *(ROOT / "runtime").rglob("*.py")):
        assert "ingot" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name,
            )
        }, path


def test_the_tour_is_what_the_files_say():
    text = (ROOT / "docs/tour.md").read_text()
    assert text == tour.tour(), "run `make docs`"
    assert not [line for line in text.splitlines() if line.endswith(": ")], "a file says nothing"


def test_no_two_files_of_tests_share_a_name():
    """Together pytest refuses the second, which alone passes."""
    names = [path.name for path in (ROOT / "tests").glob("*/test_*.py")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
