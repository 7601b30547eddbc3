"""That nothing has to be done is known before Snakemake is imported; after any change Snakemake decides."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from conftest import IRPA, ROOT
from ingot.driver.snakemake import noop

DONE = "Nothing to be done"


@pytest.fixture
def still(built, store, tmp_path):
    """A folder in which the IRPA stands, and a command that says whether it imported Snakemake.

    `still()` runs it; the first run has decided that nothing has to be done.
    """
    folder = built("a")
    environment = {
        **{name: said for name, said in os.environ.items() if not name.startswith("PYTEST")},
        "INGOT_STORE": str(store), "PYTHONPROFILEIMPORTTIME": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip

    def run(*words, **more):
        done = subprocess.run(
            [ROOT / ".venv/bin/snakemake", "-s", folder / "Snakefile", "-c2", *(words or ("--", IRPA))],
            cwd=folder, env={**environment, **more}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = done.stderr.splitlines()
        said = [line for line in lines if not line.startswith("import time:")]
        return "\n".join(said), any(line.endswith(" snakemake.cli") for line in lines)

    run.folder = folder
    time.sleep(0.05)
    said, imported = run()
    assert DONE in said and imported
    assert run() == (said, False)
    return run


def in_place(path):
    """Another last byte; size, mode and mtime are as they were."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def local(folder):
    (folder / "models.local.yaml").write_text("models: {demo: {dtype: f16}}\n")


def another_pair(folder):
    path = folder / "models.yaml"
    path.write_text(path.read_text().replace("dtype: bf16", "dtype: f16", 1))


def shadow(folder):
    (folder / "scripts/gguf").mkdir()
    (folder / "scripts/gguf/__init__.py").write_text("raise SystemExit('another gguf')\n")


CHANGES = {
    "an input, in place": lambda a: in_place(a / "models/demo/model-00001-of-00002.safetensors"),
    "the artifact, in place": lambda a: in_place((a / IRPA).resolve()),
    "the artifact is gone": lambda a: (a / IRPA).unlink(),
    "another file in its place": lambda a: ((a / IRPA).unlink(), (a / IRPA).write_bytes(b"mine")),
    "another link in its place": lambda a: (
        (a / IRPA).unlink(), (a / IRPA).symlink_to(a / "models.yaml")
    ),
    "a catalogue beside": local,
    "the catalogue": another_pair,
    "a module of a step": lambda a: in_place(a / "scripts/gguf_to_irpa.py"),
    "a rule": lambda a: in_place(a / "rules/irpa.smk"),
    "a lock of a toolchain": lambda a: in_place(a / "envs/convert/requirements.lock"),
    "the profile": lambda a: (a / "profiles/default/config.v9+.yaml").write_text("cores: 1\n"),
    "a module before another": shadow,
    "the records": lambda a: shutil.rmtree(a.parent / "store/actions"),
    "the checkpoint's folder": lambda a: (a / "models/demo").rename(a / "models/other"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_of_what_it_looked_at_snakemake_decides(still, change):
    CHANGES[change](still.folder)
    assert still()[1]


@pytest.mark.slow
def test_another_command_variable_or_place_is_not_known(still):
    for words, more in (
        (("-n", "--", IRPA), {}),
        (("--forceall", "-n", "--", IRPA), {}),
        (("--config", "keep=targets", "--", IRPA), {}),
        (("--", IRPA, "artifacts/demo.gguf"), {}),
        (("--", IRPA), {"INGOT_STORE": f"{still.folder}/none"}),
        (("--", IRPA), {"INGOT_REMOTE": "oci://localhost:1/nothing"}),
    ):
        assert still(*words, **more)[1], (words, more)
    still()  # one of them took a file away: it comes back
    still()
    assert not still()[1]


@pytest.mark.slow
def test_what_another_could_have_written_is_not_believed(still):
    (kept,) = (still.folder.parent / "cache/ingot/noop").iterdir()
    kept.chmod(0o666)
    assert still()[1]
    kept.chmod(0o600)
    assert not still()[1]
    kept.write_bytes(b"cut off")
    said, imported = still()
    assert imported and DONE in said


def test_nothing_is_known_by_what_a_forger_names(tmp_path, monkeypatch):
    """Sizes, times and numbers of a file are compared, not what is beside them."""
    file = tmp_path / "a"
    file.write_text("one")
    before = noop._state(str(file))
    file.write_text("two")
    assert noop._state(str(file)) != before
    file.unlink()
    assert noop._state(str(file)) is None
    assert not noop._plain(["--dag"]) and not noop._plain(["artifacts/a", "--report"])
    assert noop._plain(["-c2", "--", IRPA]) and noop._plain(["--cores", "2", IRPA])
    assert sys.modules["os"].stat is noop.STAT
