"""A toolchain that somebody altered makes nothing: its key would say the lock."""

import shutil

import pytest

from conftest import IRPA, ROOT
from ingot.driver.toolchains import toolchains

pytestmark = pytest.mark.slow


def test_a_toolchain_that_was_altered_by_hand_is_not_used(clone, build, tmp_path):
    folder, envs = clone("a"), tmp_path / "envs"
    (folder / "types.py").write_text("raise SystemExit('of the user, not of Python')\n")
    build(folder, "artifacts/demo.gguf", INGOT_ENVS=str(envs))
    (built,) = envs.glob("convert-*/")
    module = next(built.glob("lib/python*/site-packages/numpy/version.py"))
    module.write_text(module.read_text() + "\n# edited\n")
    build(folder, "artifacts/demo.gguf", INGOT_ENVS=str(envs))  # nothing is made
    said = build(folder, "artifacts/demo.bf16.gguf", fails=True, INGOT_ENVS=str(envs))
    (line,) = [line for line in said.splitlines() if "was changed after it was built" in line]
    assert line.startswith(f"{built}".rstrip("/")) or f"{built}".rstrip("/") in line
    assert "numpy/version.py" in line and "Traceback" not in said
    shutil.rmtree(built)
    (folder / "logs/toolchain" / built.name).unlink(missing_ok=True)
    build(folder, "artifacts/demo.bf16.gguf", IRPA, INGOT_ENVS=str(envs))


@pytest.mark.parametrize("change", ["edited", "added", "removed", "renamed"])
def test_every_change_of_a_file_is_another_state(change, tmp_path):
    package = tmp_path / "lib/package"
    (package / "__pycache__").mkdir(parents=True)
    for name in ("one.py", "two.py"):
        (package / name).write_text("text")
    before = toolchains.state(tmp_path)
    (package / "__pycache__/one.pyc").write_bytes(b"compiled")
    (tmp_path / "ready").write_text("x")
    assert toolchains.state(tmp_path) == before
    one = package / "one.py"
    if change == "edited":
        one.write_text("other text")
    elif change == "added":
        (package / "three.py").write_text("")
    elif change == "removed":
        one.unlink()
    else:
        one.rename(package / "three.py")
    assert toolchains.state(tmp_path)[0] != before[0]


def test_the_toolchains_of_this_machine_are_as_they_were_built():
    """No program writes into its own: else every run after the first would be refused."""
    for name in toolchains.names(ROOT):
        toolchains.stop_where_altered([f"{toolchains.MARKS}{toolchains.place(ROOT, name).name}"])
