"""Toolchains: an exact lock in envs/<name>/, built once a machine into a per-user cache.

A toolchain's place is named by the digest of its lock, so that two versions stand side by side and
a new clone builds nothing again.  INGOT_ENVS moves the cache.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ingot.files.atomic import replacing

LOCK, WISH, BUILD = "requirements.lock", "requirements.in", "build.py"


def names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"envs/*/{LOCK}"))


def cache() -> Path:
    """Where toolchains are built: INGOT_ENVS, or else below the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("INGOT_ENVS") or Path(home) / "ingot" / "envs")


def place(root: Path, name: str) -> Path:
    """The folder of toolchain `name`, built or not."""
    digest = hashlib.sha256()
    for file in (LOCK, BUILD):
        path = root / "envs" / name / file
        digest.update(path.read_bytes() if path.exists() else b"")
    return cache() / f"{name}-{digest.hexdigest()[:12]}"


def python(root: Path, name: str) -> Path:
    return place(root, name) / "bin" / "python"


def build(root: Path, name: str) -> Path:
    """Build toolchain `name` unless it stands; two processes that ask at once build it once."""
    folder = place(root, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(root / "envs" / name, folder)
            (folder / "ready").write_text(f"{folder.name}\n")
    return folder


def _install(source: Path, folder: Path) -> None:
    count = len(_hashes(source / LOCK)) - 1
    print(
        f"toolchain {source.name}: installing {count} packages into {folder}; done once a machine",
        file=sys.stderr,
        flush=True,
    )
    _run(sys.executable, "-m", "venv", folder)
    interpreter = folder / "bin" / "python"
    _pip(interpreter, "install", "--no-deps", "--require-hashes", "-r", source / LOCK)
    # The lock names the CPU build of torch.  Where pip's indexes have only the CUDA build, this
    # brings the CUDA libraries that build pins; otherwise it finds nothing to do.
    if torch := [line for line in (source / LOCK).read_text().split("\n") if line[:7] == "torch=="]:
        _pip(interpreter, "install", torch[0].split()[0])
    if (source / BUILD).exists():
        _run(interpreter, source / BUILD, folder)


def lock(root: Path, name: str) -> Path:
    """Resolve envs/<name>/requirements.in anew and write the lock: name, version, hashes.

    Hashes that the old lock holds for the same version are kept: other builds of that release.
    """
    source = root / "envs" / name
    known = _hashes(source / LOCK)
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", folder)
        report = Path(folder) / "report.json"
        flags = ("--dry-run", "--ignore-installed", "--report", report)
        _pip(Path(folder) / "bin" / "python", "install", *flags, "-r", source / WISH)
        items = json.loads(report.read_text())["install"]
    lines = [f"# Written by `ingot lock {name}` for CPython 3.11 on Linux x86-64."]
    for item in sorted(items, key=lambda item: item["metadata"]["name"].lower()):
        pin = f"{item['metadata']['name']}=={item['metadata']['version'].split('+')[0]}"
        digest = f"sha256:{item['download_info']['archive_info']['hashes']['sha256']}"
        for number in sorted({digest, *known.get(pin, [])}):
            pin += f" --hash={number}"
        lines.append(pin)
    with replacing(source / LOCK) as partial:
        partial.write_text("\n".join(lines) + "\n")
    return source / LOCK


def _hashes(path: Path) -> dict[str, list[str]]:
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {line[0]: [word[7:] for word in line[1:] if word[:7] == "--hash="] for line in lines}


def _pip(interpreter: Path, *arguments) -> None:
    _run(interpreter, "-m", "pip", *arguments[:1], "-qq", "--no-input", *arguments[1:])


def _run(*command) -> None:
    done = subprocess.run([str(word) for word in command], stdout=sys.stderr, check=False)
    if done.returncode:
        text = " ".join(str(word) for word in command[:6])
        sys.exit(f"{text} ...: exit status {done.returncode}; its last lines above say why")
