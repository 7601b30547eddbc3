"""That nothing has to be done is known before Snakemake is imported; after any change Snakemake decides."""

import os
import subprocess
import time

import pytest

from conftest import IRPA, ROOT
from ingot.base import memo
from ingot.driver.snakemake import noop

DONE = "Nothing to be done"


def on_disk(folder):
    """Where times tell what was written; else nothing is kept."""
    for place in (folder, ROOT):
        if memo.file_system(str(place), place.stat().st_dev).startswith("memory"):
            pytest.skip(f"{place} is in memory")
    return folder


@pytest.fixture
def still(rested, snakemake, store):
    """In a folder where the IRPA stands, and a run has found nothing to do: what the command says, and
    whether Snakemake ran, which leaves a log each time."""
    folder = on_disk(rested("a"))
    logs = folder / ".snakemake/log"

    def run(*words, **more):
        before = len(list(logs.iterdir()))
        words = ("-s", folder / "Snakefile", *(words or ("--", IRPA)))
        done = snakemake(folder, *words, environment={"INGOT_STORE": str(store), **more})
        return done.stdout + done.stderr, len(list(logs.iterdir())) > before

    said, ran = run()
    assert DONE in said and not ran
    return run, folder


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


CHANGES = {  # beside those of test_cache.py
    "the artifact, in place": lambda a: in_place((a / IRPA).resolve()),
    "another file in its place": lambda a: ((a / IRPA).unlink(), (a / IRPA).write_bytes(b"mine")),
    "another link in its place": lambda a: (
        (a / IRPA).unlink(), (a / IRPA).symlink_to(a / "models.yaml")
    ),
    "a link to it": lambda a: (
        (a / IRPA).rename(a / "moved"), (a / IRPA).symlink_to(a / "moved")
    ),
    "a catalogue beside": local,
    "the catalogue": another_pair,
    "a module of a step": lambda a: in_place(a / "scripts/gguf_to_irpa.py"),
    "a rule": lambda a: in_place(a / "rules/irpa.smk"),
    "a lock of a toolchain": lambda a: in_place(a / "envs/convert/requirements.lock"),
    "the profile": lambda a: (a / "profiles/default/config.v9+.yaml").write_text("cores: 1\n"),
    "a module before another": shadow,
    "the checkpoint's folder": lambda a: (a / "models/demo").rename(a / "models/other"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_of_what_it_looked_at_snakemake_decides(still, change):
    run, folder = still
    CHANGES[change](folder)
    assert run()[1]


@pytest.mark.slow
def test_bytecode_that_somebody_else_leaves_beside_the_code_is_no_change(still):
    """Two tests failed by it: another process had imported from the same folders meanwhile."""
    run, folder = still
    for place in ("rules", "scripts", "envs"):
        (folder / place / "__pycache__").mkdir(exist_ok=True)
        (folder / place / "__pycache__/another").touch()
    assert not run()[1]
    (folder / "scripts/gguf.py").write_text("")
    assert run()[1]


@pytest.mark.slow
def test_another_command_or_variable_is_not_known(still):
    run, folder = still
    for words, more in (
        (("--printshellcmds", "--", IRPA), {}),
        (("--config", "keep=targets", "--", IRPA), {}),
        (("--", IRPA, "artifacts/demo.gguf"), {}),
        (("--", IRPA), {"INGOT_STORE": f"{folder}/none"}),
        (("--", IRPA), {"INGOT_ANYTHING": "1"}),
    ):
        assert run(*words, **more)[1], (words, more)


@pytest.mark.slow
def test_snakemake_is_not_imported_and_what_another_could_have_written_is_not_believed(
    rested, store, tmp_path
):
    folder, cache = on_disk(rested("a")), tmp_path / "cache"
    (cache / "snakemake/snakemake/source-cache/snakemake-runtime-cache").mkdir(parents=True)
    environment = {
        **os.environ, "INGOT_STORE": str(store), "XDG_CACHE_HOME": str(cache),
        "PYTHONPROFILEIMPORTTIME": "1", "PYTEST_CURRENT_TEST": "",
    }  # fmt: skip
    command = [ROOT / ".venv/bin/snakemake", "-s", folder / "Snakefile", "-c2", "--", IRPA]

    def imported():
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        assert DONE in done.stderr
        return any(line.endswith(" snakemake.cli") for line in done.stderr.splitlines())

    assert imported() and not imported()
    (kept,) = (cache / "ingot/noop").iterdir()
    kept.chmod(0o666)
    assert imported()
    kept.chmod(0o600)
    assert not imported()
    kept.write_bytes(b"cut off")
    assert imported()


@pytest.mark.slow
def test_what_another_run_puts_in_place_meanwhile_is_not_known(still):
    """The first look at an artifact is a second before the decision."""
    run, folder = still
    (folder / IRPA).rename(folder / "kept")
    watch = noop.Watch.__new__(noop.Watch)
    watch.on = True
    watch.here, watch.files, watch.written, watch.made = str(folder), {}, set(), ("\0",)
    stat = watch._noting(noop.STAT)
    with pytest.raises(FileNotFoundError):
        stat(folder / IRPA)
    assert watch.on and watch.files[str(folder / IRPA)] is None
    (folder / "kept").rename(folder / IRPA)
    stat(folder / IRPA)
    assert not watch.on and not run()[1]


@pytest.mark.slow
def test_a_folder_that_is_named_like_bytecode_is_looked_at(rested, store, snakemake):
    folder = rested("a.pyc")
    file = folder / "models/demo/model-00001-of-00002.safetensors"
    words = ("-s", folder / "Snakefile", "--", IRPA)
    logs = folder / ".snakemake/log"
    before = len(list(logs.iterdir()))
    in_place(file)
    snakemake(folder, *words, environment={"INGOT_STORE": str(store)})
    assert len(list(logs.iterdir())) > before


def test_a_link_is_no_folder_and_memory_no_disk(tmp_path):
    (tmp_path / "parts").mkdir()
    before = noop._state(str(tmp_path / "parts"))
    (tmp_path / "parts").rename(tmp_path / "elsewhere")
    (tmp_path / "parts").symlink_to("elsewhere")
    assert noop._state(str(tmp_path / "parts")) != before
    for path in (
        "/dev/shm/model",
        "/a/artifacts/x/y.pyc",
        "/a/artifacts/x/__pycache__",
        "/a.pyc/b",
    ):
        assert not noop.PASSED_OVER.fullmatch(path), path
    assert noop.PASSED_OVER.fullmatch("/proc/stat") and noop.PASSED_OVER.fullmatch("/a/b.pyc")


@pytest.mark.slow
def test_closed_streams_and_a_folder_that_is_not_ones_own_lose_nothing(rested, store, tmp_path):
    folder, mine, cache = rested("a"), tmp_path / "mine", tmp_path / "cache"
    mine.mkdir()
    for number in range(noop.MOST + 20):
        (mine / f"{number}").touch()
    (cache / "ingot").mkdir(parents=True)
    (cache / "ingot/noop").symlink_to(mine)
    command = f"{ROOT}/.venv/bin/snakemake -s {folder}/Snakefile -c2 -- {IRPA}"
    for more in ("2>&-", ">&-", ""):
        done = subprocess.run(
            ["sh", "-c", f"exec {command} {more}"], cwd=folder, check=False, capture_output=True,
            env={**os.environ, "INGOT_STORE": str(store), "XDG_CACHE_HOME": str(cache)}, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stderr, more
    assert len(list(mine.iterdir())) == noop.MOST + 20


def test_a_state_is_of_one_file_at_one_time(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    before = noop._state(str(file))
    time.sleep(0.05)
    file.write_text("two")
    assert noop._state(str(file)) != before
    file.unlink()
    assert noop._state(str(file)) is None


@pytest.mark.parametrize(
    "words",
    ["--dag", "artifacts/a --report", "--forceall artifacts/a", "-n", "--config a=$b"],
)
def test_other_options_are_snakemakes(words):
    assert not noop._plain(words.split())


@pytest.mark.parametrize(
    "words",
    [
        "-c2 -- artifacts/a.gguf",
        "--cores 2 artifacts/a",
        "-q -k --configfile mine.yaml -- artifacts/a",
    ],
)
def test_targets_and_plain_options_are_known(words):
    assert noop._plain(words.split())
