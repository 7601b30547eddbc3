"""A copy of the pipeline, and what Python compiled of it: for tests and benches that edit what they run."""

import contextlib
import os
import shutil
from pathlib import Path

from ingot.driver.catalogue.rules.environment import BYTECODE

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "Snakefile", "models.yaml", "models.schema.json", "rules", "scripts", "runtime", "envs", "profiles",
    "models/demo", "models/corpus.txt", "LICENSE",
)  # fmt: skip


def checkout(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if part == "scripts":
            copy_modules(source, folder / part)
        elif source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    (folder / "slurm").symlink_to("profiles/slurm")
    return folder


def copy_modules(source: Path, target: Path) -> None:
    """Copy a folder of modules, with what Python compiled of them, which may lie elsewhere."""
    shutil.copytree(source, target, copy_function=_copy)
    place = os.environ.get(BYTECODE, "")
    if place and Path(f"{place}{source}").exists():
        shutil.rmtree(f"{place}{target}", ignore_errors=True)
        shutil.copytree(f"{place}{source}", f"{place}{target}", copy_function=_copy)


def _copy(source: str, target: str) -> None:
    """What is compiled is never changed in place, and comes and goes while other tests run."""
    if not source.endswith(".pyc"):
        if ".pyc." not in source:  # one that is being written
            shutil.copy2(source, target)
        return
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(source, target)
        except OSError:  # on another file system
            shutil.copy2(source, target)
