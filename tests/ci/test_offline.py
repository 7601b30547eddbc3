"""`make wheels` where there is an index; then the toolchains are built where there is no network at all."""

import os
import shutil
import subprocess

from conftest import ROOT, needs_mounts
from ingot.driver.toolchains import wheels


def test_a_lock_is_whole_when_each_of_its_packages_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_WHEELS", str(tmp_path))
    lock = tmp_path / "requirements.lock"
    lock.write_text("# a lock\nPyYAML==6.0 --hash=sha256:0\ntorch==2.1+cpu --hash=sha256:0\n")
    (tmp_path / "pyyaml-6.0-cp311-linux.whl").touch()
    assert not wheels.whole(lock)
    (tmp_path / "torch-2.2+cpu-cp311-linux.whl").touch()
    assert not wheels.whole(lock), "another version"
    (tmp_path / "torch-2.1+cpu-cp311-linux.whl").touch()
    assert wheels.whole(lock)
    (tmp_path / "PyYAML-6.0.tar.gz").touch()
    (tmp_path / "pyyaml-6.0-cp311-linux.whl").unlink()
    assert wheels.whole(lock), "a source package"


@needs_mounts
def test_what_was_collected_is_installed_where_there_is_no_network(tmp_path):
    folder, here = tmp_path / "repository", {**os.environ, "INGOT_WHEELS": str(tmp_path / "wheels")}
    for part in ("Makefile", "pyproject.toml", "README.md", "LICENSE", "scripts", "envs"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, folder / part)
    done = subprocess.run(
        ["make", "wheels", "TOOLCHAINS=convert"],
        cwd=ROOT,
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    clean = {name: word for name, word in here.items() if not name.startswith(("PIP_", "UV_"))}
    clean |= {
        "PIP_CONFIG_FILE": os.devnull,
        "INGOT_ENVS": str(tmp_path / "envs"),
        "HOME": str(tmp_path),
    }
    command = "make setup && .venv/bin/ingot toolchain convert"
    done = subprocess.run(
        ["unshare", "-Urn", "sh", "-c", command],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "envs").glob("convert-*/ready"))
