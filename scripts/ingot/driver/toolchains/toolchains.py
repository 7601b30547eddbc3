"""Toolchains: an exact lock in envs/<name>/, built once per machine into a per-user cache.

A toolchain's place is named by the digest of its lock, so that two versions lie side by side and
a new clone builds nothing again.  INGOT_ENVS moves the cache.
"""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.driver.toolchains import bootstrap, indexes, sizes, wheels
from ingot.store import locks

LOCK, CUDA, WISH, BUILD = (
    "requirements.lock", "requirements.cuda.lock", "requirements.in", "build.py",
)  # fmt: skip
FOR_GPUS = "-cuda"  # how a toolchain's name ends that has torch's CUDA build alone
MARKS = "logs/toolchain/"  # of built toolchains, below the working folder
FILES = (LOCK, CUDA, BUILD, "chat.cpp", "see.cpp", "together.cmake", "kernels.c")  # it is built by


def names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"envs/*/{LOCK}"))


def cache() -> Path:
    """Where toolchains are built: INGOT_ENVS, or else below the user's cache folder."""
    return Path(os.environ.get("INGOT_ENVS") or _users_own() / "envs")


def _users_own() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ingot"


def bytecode() -> Path | None:
    """Where Python keeps what it compiles of toolchains that are another user's; None: beside them.

    Else each process compiles all that it imports again: of torch and transformers 3.8 of 7.2 CPU seconds.
    """
    folder = cache()
    return None if not folder.exists() or os.access(folder, os.W_OK) else _users_own() / "bytecode"


def shown(path: str) -> str:
    """A file's name as it is shown: a toolchain's mark is the toolchain."""
    return f"toolchain {Path(path).name.rpartition('-')[0]}" if path.startswith(MARKS) else path


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
    with _locked(folder, name):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(root, source, folder)
            (folder / "ready").write_text(f"{folder.name}\n{state(folder)[0]}\n")
    return folder


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """While one process builds a toolchain.  Refused: where nobody but another user may."""
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locks.locked(folder.with_suffix(".busy")))
        except OSError as error:
            unlocked = isinstance(error, FileNotFoundError)  # nor may a lock be made there
            why = "may not be written" if unlocked else error.strerror
            raise Refused(_anothers(folder, name, why)) from None
        if not (folder / "ready").exists() and not os.access(folder.parent, os.W_OK):
            raise Refused(_anothers(folder, name, "may not be written"))
        yield


def _anothers(folder: Path, name: str, why: str) -> str:
    return (
        f"{folder.parent}: {why}, and toolchain {name} is not there yet; have its owner run "
        f"`ingot toolchain {name}`, or set INGOT_ENVS to a folder of your own"
    )


def _install(root: Path, source: Path, folder: Path) -> None:
    """Every package by its hash.  Where no index has torch's CPU build, its CUDA build is taken."""
    lock, began = source / LOCK, time.monotonic()
    _say(f"toolchain {source.name}: installing {len(wheels.pins(lock))} packages into {folder}")
    bootstrap.run(*indexes.PYTHON, "-m", "venv", "--without-pip", folder)
    if (source / BUILD).exists():
        bootstrap.pip(folder)
    if wheels.whole(source / CUDA) and not wheels.whole(lock):
        lock = source / CUDA  # collected where no index has the other
    download, disk = sizes.expected(root, source.name, lock.name == CUDA)
    said = sync(folder, lock, total=disk)
    if (source / CUDA).exists() and indexes.lacks_cpu_torch(said):
        lock = source / CUDA
        download, disk = sizes.expected(root, source.name, True)
        _say(
            f"toolchain {source.name}: no index has torch for CPUs, so its CUDA build is installed, "
            f"{download / 1e9:.1f} GB to download and {disk / 1e9:.1f} GB on disk"
        )
        said = sync(folder, lock, total=disk)
    if said:
        raise Refused(f"{lock}: not installed:", said.strip())
    compiling = time.monotonic()
    if (source / BUILD).exists():
        with _counted(
            f"toolchain {source.name}: compiling", sizes.compile_seconds(root, source.name)
        ):
            bootstrap.run(folder / "bin" / "python", source / BUILD, folder, *wheels.places())
    ended = time.monotonic()
    sizes.note(folder, download, ended - began, ended - compiling)


def stop_where_unseen(inputs: Iterable[str]) -> None:
    """Refuse a job whose toolchain, by its mark among the inputs, is not seen on this machine."""
    for path in inputs:
        folder = cache() / Path(path).name
        if path.startswith(MARKS) and not (folder / "ready").exists():
            raise Refused(
                f"{folder}: not seen on {platform.node()}, expected the toolchain that was built for this "
                "run; set INGOT_ENVS, or envs in the site file, to a shared folder"
            )


def stop_where_altered(inputs: Iterable[str]) -> None:
    """Refuse a job whose toolchain is not as it was built: its key says the lock, and nothing else."""
    for path in inputs:
        if path.startswith(MARKS):
            _stop_where_altered(cache() / Path(path).name)


@functools.cache  # looked at once a run
def _stop_where_altered(folder: Path) -> None:
    try:
        built = (folder / "ready").read_text().split()[1:]  # empty in one of an older Ingot
    except OSError:
        return
    found, newest = state(folder) if built else ("", "")
    if built and built[0] != found:
        raise Refused(
            f"{folder}: was changed after it was built (last: {newest}), so that it would not make what "
            "its lock says; remove that folder, and the toolchain is built again"
        )


def state(folder: Path) -> tuple[str, str]:
    """A digest of the names, sizes and times of all files of a toolchain, and the file that changed last.

    Times are in seconds, which archives keep; what Python compiles for itself does not count.
    """
    found, newest = hashlib.sha256(), (0.0, "")
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = f"{place}/{name}"
            if path == f"{folder}/ready":
                continue
            at, shown = os.lstat(path), os.path.relpath(path, folder)
            line = f"{shown}\0{at.st_size}\0{int(at.st_mtime)}\n"
            found.update(line.encode(errors="surrogateescape"))
            newest = max(newest, (at.st_mtime, shown))
    return found.hexdigest(), newest[1]


def driver(folder: Path, lock: Path) -> None:
    """Install what the driver itself needs into `folder`, this Python's venv."""
    bootstrap.pip(folder)
    if said := sync(folder, lock, uv=bootstrap.uv(folder, lock, _users_own())):
        raise Refused(f"{lock}: not installed:", said.strip())


def sync(
    folder: Path,
    lock: Path,
    *more: str,
    total: int = 0,
    limit: float | None = None,
    uv: Path = Path(sys.executable).parent / "uv",
) -> str:
    """Install what `lock` names, from wheels/ where all of it lies there; or what uv says when it cannot.

    Counts the bytes that it writes, toward `total`; ended after `limit` seconds.  uv's own cache lies
    beside the toolchains, whose files are hard links into it; where those are another user's, it is
    the user's own.
    """
    flags, environment = indexes.settings(public=lock.parent.name.endswith(FOR_GPUS))
    if wheels.whole(lock):
        flags = wheels.flags()
    command = [uv, "pip", "sync", "--no-config", "--quiet", "--require-hashes", *more]
    command += ["--python", folder / "bin/python", "--cache-dir", _uv_cache()]
    with tempfile.TemporaryFile() as said:
        words = [str(word) for word in (*command, *flags, lock)]
        process = subprocess.Popen(words, env=environment, stderr=said)
        try:
            if total:
                _count(process, Progress(f"toolchain {lock.parent.name}", total))
            status = process.wait(limit)
        except BaseException as reason:
            process.kill()
            process.wait()
            if not isinstance(reason, subprocess.TimeoutExpired):
                raise
            return f"Failed to answer within {limit} s"
        said.seek(0)
        text = said.read().decode(errors="replace")
    return (text or f"uv: exit status {status}") if status else ""


def _count(process: subprocess.Popen, progress: Progress) -> None:
    """Show what a process has written until it ends: a wheel is unpacked as it is fetched."""
    done = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{process.pid}/io").read_text().split()
            now = min(int(fields[fields.index("wchar:") + 1]), progress.total - 1)
            if now > done:
                progress.add(now - done)
                done = now
        time.sleep(0.2)
    progress.add(progress.total - progress.done)  # which ends its line on a terminal


@contextlib.contextmanager
def _counted(what: str, seconds: int) -> Iterator[None]:
    """Show the seconds that something takes, toward those that it took elsewhere."""
    progress, over = Progress(what, seconds, "s"), threading.Event()

    def count() -> None:
        while progress.done < seconds - 1 and not over.wait(1):
            progress.add(1)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress.add(progress.total - progress.done)


def size(root: Path, name: str) -> sizes.Size | None:
    """What building toolchain `name` will take; None where nobody has measured it."""
    source = root / "envs" / name
    cuda = (source / CUDA).exists() and not _has_cpu_torch(source / LOCK)
    return sizes.of(root, name, cuda, cache())


@functools.cache
def _has_cpu_torch(lock: Path) -> bool:
    """Will the build for CPUs of `lock`'s torch be found?  uv looks; nothing is downloaded.

    Where no index answers soon, nothing can be installed either, and no other lock is asked about.
    """
    if _SILENT:
        return True
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder, lock.parent.name, lock.name)
        one.parent.mkdir()
        pins = [line for line in wheels.pins(lock) if line.startswith("torch==")]
        one.write_text("\n".join(pins))
        said = sync(Path(sys.prefix), one, "--dry-run", limit=SOON)
    if "Failed to" in said:
        _SILENT.append(lock)
    return not indexes.lacks_cpu_torch(said)


_SILENT: list[Path] = []  # locks that no index answered of
SOON = 5.0  # seconds


def _uv_cache() -> Path:
    shared = cache() / ".uv"
    nearest = next(path for path in (shared, *shared.parents) if path.exists())
    return shared if os.access(nearest, os.W_OK) else _users_own() / "uv"


def collect(root: Path, name: str) -> None:
    """Download all that toolchain `name` is built of into wheels/."""
    source = root / "envs" / name
    said = wheels.download(source / LOCK)
    if (source / CUDA).exists() and indexes.lacks_cpu_torch(said):
        said = wheels.download(source / CUDA)
    if said:
        raise Refused(f"{source / LOCK}: not collected:", said.strip())
    if (source / BUILD).exists():  # some keep what they fetched themselves
        for archive in (build(root, name) / "source").glob("*"):
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
