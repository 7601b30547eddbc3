"""What docs/recordings shows is what a person sees: each session is typed again, on a real terminal."""

import itertools
import re
import tempfile
from pathlib import Path

import pytest

import recording
from conftest import ROOT
from ingot.driver.catalogue.formats import rows

OFFERED = {row.name for row in rows.OFFERED}
NAMES = [path.stem for path in sorted(recording.RECORDINGS.glob("*.txt"))]
PAGES = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]


def without_formats(line):
    """A line that lists formats, which are today's or were, without them."""
    start, mark, names = line.partition("can be built: ")
    if mark:
        assert "gguf" in names.split(", ") and {*names.split(", ")} <= OFFERED, line
    return start + mark if mark else line


def in_order(text):
    """Jobs that run side by side end in any order: their lines, sorted where they follow each other."""
    whole = re.sub(rf"(?<=.{{{recording.COLUMNS}}})\n", "", text).splitlines()
    whole = [without_formats(line) for line in whole if not line.startswith("cannot: ")]
    for ended, group in itertools.groupby(whole, lambda line: line.startswith("done ")):
        lines = [*group]
        yield from sorted(lines) if ended else lines


def told(text, scratch):
    """What does not depend on the machine, its load, its moment, where a line had to end, and the formats
    that there are by now."""
    text = "".join("".join(in_order(text)).split())
    for place in (str(scratch), "/tmp/session"):
        text = text.replace("".join(place.split()), "PLACE")
    text = re.sub(r"[0-9a-f]{12}", "HASH", text)
    return re.sub(r"[0-9][0-9.,]*([kMGT]?i?B|min|s\b|s(?=,))?", "N", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_session_goes_as_it_is_recorded(name):
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = recording.clone(Path(scratch))
        *_, terminal = recording.typed(recording.commands(name), folder, environment, key=0)
        found = recording.transcript(terminal)
    wanted = (recording.RECORDINGS / f"{name}.txt").read_text()
    again = f"python docs/recording.py {name}, if that is meant:\n{found}"
    assert told(found, scratch) == told(wanted, scratch), again


@pytest.mark.parametrize("name", NAMES)
def test_its_picture_ends_with_its_last_line_and_a_page_shows_it(name):
    last = (recording.RECORDINGS / f"{name}.txt").read_text().splitlines()[-1].split()
    picture = (recording.RECORDINGS / f"{name}.svg").read_text()
    final = picture.rpartition('class="frame">')[2]
    assert all(recording.escape(word) in final for word in last)
    assert any(f"recordings/{name}.svg" in page for page in PAGES)
