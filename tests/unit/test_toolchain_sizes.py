"""What a toolchain takes is known before it is built: from envs/sizes.json, and what past ones took."""

import json

import pytest

from conftest import ROOT
from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.job import Job, Output
from ingot.driver.catalogue.model import Model
from ingot.driver.toolchains import sizes, toolchains


@pytest.mark.parametrize("name", toolchains.names(ROOT))
def test_each_toolchain_has_been_measured(name):
    download, disk = sizes.expected(ROOT, name, False)
    assert 0 < download < disk, f"run bench/toolchains.py {name}"
    if (ROOT / "envs" / name / toolchains.CUDA).exists():
        assert sizes.expected(ROOT, name, True)[0] > download


def test_seconds_follow_the_rate_of_the_largest_that_was_built_here(tmp_path):
    first = sizes.of(ROOT, "iree", False, tmp_path)
    (tmp_path / "x-1").mkdir()
    sizes.note(tmp_path / "x-1", int(4 * sizes.RATE), 1.0, 0.0)
    assert sizes.of(ROOT, "iree", False, tmp_path).seconds < 0.3 * first.seconds
    (tmp_path / "x-1/took.json").write_text("damaged")
    assert sizes.of(ROOT, "iree", False, tmp_path) == first
    assert sizes.of(ROOT, "nobody's", False, tmp_path) is None


def test_a_toolchain_is_a_job_with_a_forecast_until_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_ENVS", str(tmp_path))
    mark = f"{toolchains.MARKS}{toolchains.place(ROOT, 'hub').name}"
    job = Job("toolchain", "", (), (Output("", mark, False),), {"name": "hub"}, {}, None)
    work = rows.STEPS["toolchain"](job, Model("", {"models": {}}, ROOT))
    known = json.loads((ROOT / sizes.FILE).read_text())["hub"]
    assert (work.download, work.files[mark]) == (known["download"], known["disk"])
    (toolchains.place(ROOT, "hub")).mkdir()
    (toolchains.place(ROOT, "hub") / "ready").touch()
    there = rows.STEPS["toolchain"](job, Model("", {"models": {}}, ROOT))
    assert there.download == 0 and there.files[mark] == 0
    assert toolchains.shown(mark) == "toolchain hub"
