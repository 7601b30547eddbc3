"""Toolchains: an exact lock in envs/<name>/, built once per machine into a per-user cache.

A toolchain's place is named by the digest of its lock, so that two versions lie side by side and
a new clone builds nothing again.  INGOT_ENVS moves the cache.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ingot.driver.catalogue import indexes, wheels
from ingot.refused import Refused

LOCK, CUDA, WISH, BUILD = (
    "requirements.lock", "requirements.cuda.lock", "requirements.in", "build.py",
)  # fmt: skip
FOR_GPUS = "-cuda"  # how a toolchain's name ends that has torch's CUDA build alone
MARKS = "logs/toolchain/"  # of built toolchains, below the working folder
FILES = (LOCK, CUDA, BUILD, "chat.cpp")  # that a toolchain is built by


def names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"envs/*/{LOCK}"))


def cache() -> Path:
    """Where toolchains are built: INGOT_ENVS, or else below the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("INGOT_ENVS") or Path(home) / "ingot" / "envs")


def place(root: Path, name: str) -> Path:
    """The folder of toolchain `name`, built or not."""
    digest = hashlib.sha256()
    for file in FILES:
        path = root / "envs" / name / file
        digest.update(path.read_bytes() if path.exists() else b"")
    return cache() / f"{name}-{digest.hexdigest()[:12]}"


def python(root: Path, name: str) -> Path:
    return place(root, name) / "bin" / "python"


def build(root: Path, name: str) -> Path:
    """Build toolchain `name` unless it is there; of two processes that ask at once one builds it."""
    source, folder = root / "envs" / name, place(root, name)
    if not (source / LOCK).exists():
        known = ", ".join(names(root))
        raise Refused(f"envs/{name}/{LOCK}: missing, expected a toolchain, one of {known}")
    if (folder / "ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(source, folder)
            (folder / "ready").write_text(f"{folder.name}\n")
    return folder


def _install(source: Path, folder: Path) -> None:
    """Every package by its hash.  Where no index has torch's CPU build, its CUDA build is taken."""
    lock = source / LOCK
    _say(f"toolchain {source.name}: installing {len(wheels.pins(lock))} packages into {folder}")
    pip = [] if (source / BUILD).exists() else ["--without-pip"]
    _run(sys.executable, "-m", "venv", *pip, folder)
    if wheels.whole(source / CUDA) and not wheels.whole(lock):
        lock = source / CUDA  # collected where no index has the other
    said = _sync(folder, lock)
    if (source / CUDA).exists() and indexes.lacks_cpu_torch(said):
        lock = source / CUDA
        _say(
            f"toolchain {source.name}: no index has torch for CPUs, so its CUDA build is installed, "
            "3 GB to download and 5.6 GB on disk"
        )
        said = _sync(folder, lock)
    if said:
        raise Refused(f"{lock}: not installed:", said.strip())
    if (source / BUILD).exists():
        _run(folder / "bin" / "python", source / BUILD, folder, *wheels.places())


def stop_where_unseen(inputs: Iterable[str]) -> None:
    """Refuse a job whose toolchain, by its mark among the inputs, is not seen on this machine."""
    for path in inputs:
        folder = cache() / Path(path).name
        if path.startswith(MARKS) and not (folder / "ready").exists():
            raise Refused(
                f"{folder}: not seen on {platform.node()}, expected the toolchain that was built for this "
                "run; set INGOT_ENVS, or envs in the site file, to a shared folder"
            )


def driver(folder: Path, lock: Path) -> None:
    """Install what the driver itself needs into `folder`, a venv that has uv."""
    if said := _sync(folder, lock):
        raise Refused(f"{lock}: not installed:", said.strip())


def _sync(folder: Path, lock: Path) -> str:
    """Install what `lock` names, from wheels/ where all of it lies there; or what uv says when it cannot.

    uv's own cache lies beside the toolchains, whose files are hard links into it.
    """
    flags, environment = indexes.settings(public=lock.parent.name.endswith(FOR_GPUS))
    if wheels.whole(lock):
        flags = wheels.flags()
    uv = Path(sys.executable).parent / "uv"
    command = [uv, "pip", "sync", "--no-config", "--quiet", "--require-hashes"]
    command += ["--python", folder / "bin/python", "--cache-dir", cache() / ".uv"]
    done = subprocess.run(
        [str(word) for word in (*command, *flags, lock)],
        env=environment, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return (done.stderr or f"uv: exit status {done.returncode}") if done.returncode else ""


def collect(root: Path, name: str) -> None:
    """Download all that toolchain `name` is built of into wheels/."""
    source = root / "envs" / name
    said = wheels.download(source / LOCK)
    if (source / CUDA).exists() and indexes.lacks_cpu_torch(said):
        said = wheels.download(source / CUDA)
    if said:
        raise Refused(f"{source / LOCK}: not collected:", said.strip())
    if (source / BUILD).exists():
        for archive in (build(root, name) / "source").iterdir():
            shutil.copy(archive, wheels.folder())


def lock(root: Path, name: str) -> Path:
    """Resolve envs/<name>/requirements.in again and write the lock: name, version, hashes.

    Where torch is among them, its CUDA build and that build's libraries are locked beside it.
    """
    source = root / "envs" / name
    if not (source / WISH).exists():
        raise Refused(
            f"envs/{name}/{WISH}: missing, expected what the toolchain asks for; write it"
        )
    indexes.resolve(source / WISH, source / LOCK, public=name.endswith(FOR_GPUS))
    asked = (source / WISH).read_text()
    pins = wheels.pins(source / LOCK)
    torch = any(pin.startswith("torch==") for pin in pins)
    if torch and indexes.CPU_TORCH not in asked and not name.endswith(FOR_GPUS):
        indexes.resolve(source / WISH, source / CUDA, public=True)
    return source / LOCK


def _say(text: str) -> None:
    print(f"{text}; done once per machine", file=sys.stderr, flush=True)


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], stdout=sys.stderr, check=False)
    if done.returncode:
        text = " ".join(str(word) for word in command[:6])
        raise Refused(f"{text} ...: exit status {done.returncode}; its last lines above say why")
