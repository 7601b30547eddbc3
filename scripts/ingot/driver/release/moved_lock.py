"""What a lock that moves would change: a copy of this checkout with the new lock, the recipes of both."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import dry_run
from ingot.driver.cache.key import versions
from ingot.driver.toolchains import toolchains

COPIED = ("Snakefile", "models.yaml", "models.schema.json", "rules", "scripts", "profiles", "envs")
OWN = "artifacts"  # a checkout's own, as is what is hidden


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """What decides a build, in a folder where it may be edited."""
    with TemporaryDirectory() as name:
        for part in COPIED:
            source, target = root / part, Path(name, part)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        for path in root.iterdir():  # models, and texts that a catalogue names
            if path.name not in (*COPIED, OWN) and not path.name.startswith("."):
                Path(name, path.name).symlink_to(path)
        yield Path(name)


def pins(root: Path, name: str) -> dict[str, str]:
    lock = root / "envs" / name / toolchains.LOCK
    return versions(str(lock)) if lock.exists() else {}


def moved(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """The packages that two locks name differently."""
    return [
        f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def changed(root: Path, other: Path, wanted: list[str], catalogue: str | None) -> list[str]:
    """The targets that `other`, a copy of `root`, would build by another recipe."""

    def recipes(place: Path) -> dict[str, str]:
        jobs = dry_run(place, wanted, catalogue)
        return {path: job.get("recipe", "") for job in jobs for path in job["outputs"]}

    then, now = recipes(root), recipes(other)
    names = [target.rstrip("/") for target in wanted]
    if unknown := [name for name in names if not then.get(name)]:
        raise Refused(
            f"{unknown[0]}: what it is made from is not known here, expected a pinned revision or a "
            "checkpoint; name other targets"
        )
    return [name for name in names if then[name] != now.get(name)]
