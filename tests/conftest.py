"""Running steps as the rules do: by path, in their toolchain's interpreter, from another folder."""

import os
import subprocess
from pathlib import Path

import pytest

from ingot.driver import toolchains

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def python():
    """python("iree") is the interpreter of that toolchain, built if it is not there yet."""
    return lambda name: toolchains.build(ROOT, name) / "bin" / "python"


@pytest.fixture
def step(python, tmp_path):
    """step("hub", "fetch_file.py", "--file", ...) runs a script; .returncode, .stdout, .stderr."""

    def run(name, script, *arguments, environment=None, timeout=600):
        words = [python(name), ROOT / "scripts" / script, *arguments]
        return subprocess.run(
            [str(word) for word in words],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def ok(step):
    """Like `step`, and fails with the step's own words when it fails."""

    def run(*arguments, **options):
        done = step(*arguments, **options)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        return done

    return run


@pytest.fixture(scope="session")
def snakemake():
    """snakemake(cwd, *arguments) runs the real command on this repository's Snakefile."""

    def run(cwd, *arguments, environment=None, timeout=900):
        command = [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", "--cores", "2"]
        return subprocess.run(
            [str(word) for word in (*command, *arguments)],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
