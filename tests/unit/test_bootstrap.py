"""What a set-up begins with: a pip without compiling it, and a uv that is fetched once a user."""

import subprocess
import sys

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.toolchains import bootstrap


def test_a_venv_gets_the_pip_that_its_python_brings(tmp_path, monkeypatch):
    words = [sys.executable, "-m", "venv", "--without-pip", tmp_path]
    subprocess.run(words, check=True)
    (packages,) = tmp_path.glob("lib/*/site-packages")
    (packages / "pip-99.dist-info").mkdir()  # a user's own
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "run", None)  # no ensurepip
        bootstrap.pip(tmp_path)
    said = [tmp_path / "bin/python", "-m", "pip", "--version"]
    done = subprocess.run(said, capture_output=True, text=True, check=True)
    assert str(tmp_path) in done.stdout and len([*packages.glob("pip-*")]) == 1
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(Refused, match=r"apt install python3\.11-venv"):
        bootstrap.pip(tmp_path)


@pytest.fixture
def pip_that_gets_uv(monkeypatch, tmp_path):
    """What pip is asked for; it puts a program where uv belongs, but not the first time."""
    asked = []

    def run(*words):
        asked.append([str(word) for word in words])
        if len(asked) == 1:
            raise Refused("cut short")
        place = tmp_path / "bin/uv"
        place.parent.mkdir(exist_ok=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)

    monkeypatch.setattr(bootstrap, "run", run)
    return asked


def test_uv_is_fetched_once_a_user(pip_that_gets_uv, tmp_path):
    lock, cache = ROOT / "envs/driver/requirements.lock", tmp_path / "cache"
    with pytest.raises(Refused, match="cut short"):
        bootstrap.uv(tmp_path, lock, cache)
    assert not cache.exists()
    assert bootstrap.uv(tmp_path, lock, cache) == tmp_path / "bin/uv"
    assert "--require-hashes" in pip_that_gets_uv[1]
    kept = bootstrap.uv(tmp_path, lock, cache)
    assert kept.parent == cache and len(pip_that_gets_uv) == 2
    kept.write_bytes(b"")  # cut short
    assert bootstrap.uv(tmp_path, lock, cache) == tmp_path / "bin/uv"
    assert bootstrap.uv(tmp_path, lock, cache) == kept, "mended"


def test_a_home_that_may_not_be_written_keeps_no_uv(pip_that_gets_uv, tmp_path):
    (tmp_path / "file").touch()
    pip_that_gets_uv.append([])
    found = bootstrap.uv(tmp_path, ROOT / "envs/driver/requirements.lock", tmp_path / "file/cache")
    assert found == tmp_path / "bin/uv"
