"""wheels/: packages collected where there is an index, for machines that have none.

A lock whose packages all lie there is installed from there, and no index is asked.
"""

import os
import re
import subprocess
from pathlib import Path

from ingot.driver.toolchains import indexes

FOLDER = "INGOT_WHEELS"
HERE = Path(__file__).resolve().parents[4] / "wheels"


def folder() -> Path:
    return Path(os.environ.get(FOLDER) or HERE).absolute()


def pins(lock: Path) -> list[str]:
    """Its lines of a package each: name==version --hash=..."""
    return [line for line in lock.read_text().splitlines() if "==" in line.split("#")[0]]


def whole(lock: Path) -> bool:
    """Are all packages of `lock` collected?"""
    if not lock.exists() or not folder().is_dir():
        return False
    have = {named(*path.name.split("-")[:2]) for path in folder().iterdir()}
    return all(named(*pin.split()[0].split("==")) in have for pin in pins(lock))


def named(name: str, version: str = "") -> tuple[str, str]:
    """As file names and locks both spell a package."""
    return re.sub(r"[-_.]+", "_", name).lower(), version.removesuffix(".tar.gz")


def flags() -> list[str]:
    return ["--no-index", "--find-links", str(folder())]


def places() -> list[Path]:
    """Where a toolchain's own build looks first."""
    return [folder()] if folder().is_dir() else []


def download(lock: Path) -> str:
    """Collect what `lock` names, by pip; empty, or what pip says when it cannot."""
    command: list[object] = [*indexes.PYTHON, "-m", "pip", "download", "-qq", "--no-input"]
    command += ["--no-deps", "--require-hashes", "--dest", folder()]
    command += [*indexes.more_for_pip(), "-r", lock]
    done = subprocess.run(
        [str(word) for word in command], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    missing = re.search(r"No matching distribution found for torch==(\S+)\+cpu", done.stderr)
    # as uv says it
    return f"no version of torch=={missing[1]}+cpu" if missing else done.stderr or "pip failed"
