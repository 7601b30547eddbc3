"""What must hold on a node before anything is loaded: files, versions, GPUs, room for sockets."""

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from place import FOLDER, Place, Refused, Site, state_folder

CHUNK = 1 << 22
SHARED = {
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "ceph",
    "fuse.sshfs",
    "afs",
    "panfs",
    "wekafs",
}
SOCKET = 107  # bytes of a socket's path, at most
OWN = 60  # of them for names that vLLM and Ray give
EACH = 10  # seconds between lines of progress


def files(place: Place, site: Site, bundle: dict, say: Callable[[str], None]) -> str:
    """The digest of SHA256SUMS, once what it lists is here and whole.

    Small files are hashed on each node, weights once by all nodes together, and again when they change.
    """
    sums = FOLDER / "SHA256SUMS"
    if not sums.is_file():
        raise Refused(f"{sums}: missing, expected it beside serve.sbatch; copy the whole folder")
    listed = [line.partition("  ")[::2] for line in sums.read_text().splitlines()]
    sizes, weights = bundle["weights"], []
    for known, name in listed:
        path = FOLDER / name
        if not path.is_file():
            raise Refused(f"{path}: missing, expected a file of the bundle; copy it again")
        size = path.stat().st_size
        if name in sizes:
            if size != sizes[name]:
                raise Refused(f"{path}: {size} bytes, expected {sizes[name]}; copy it again")
            weights.append((known, name))
        elif digest(path) != known:
            raise Refused(
                f"{path}: changed since it was built, expected {known[:12]}...; copy it again"
            )
    own = hashlib.sha256(sums.read_bytes()).hexdigest()
    held(weights[place.rank :: place.nodes], state_folder(site) / "checked" / own, say)
    return own


def held(weights: list[tuple[str, str]], marks: Path, say: Callable[[str], None]) -> None:
    """Hash those that have not been since they were last written."""
    total, done = sum((FOLDER / name).stat().st_size for _, name in weights), 0
    began = said = time.monotonic()
    for known, name in weights:
        path = FOLDER / name
        at = path.stat()
        if time.monotonic() - said > EACH:
            said = time.monotonic()
            rate = done / (said - began)
            left = (total - done) / rate if rate else 0
            read = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB"
            say(f"checking: {read}, {rate / 1e9:.2f} GB/s, {left:.0f} s left")
        done += at.st_size
        stamp = json.dumps([str(path), at.st_ino, at.st_size, at.st_mtime_ns])
        mark = marks / hashlib.sha256(stamp.encode()).hexdigest()
        if mark.exists():
            continue
        if digest(path) != known:
            raise Refused(f"{path}: its bytes are not those that were built; copy it again")
        marks.mkdir(parents=True, exist_ok=True)
        mark.touch()


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def versions(bundle: dict) -> dict[str, str]:
    """What is installed of the packages that the bundle pins; refused when it is another version."""
    found = {}
    for name, wanted in bundle["pins"].items():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
        if found[name] != wanted:
            raise Refused(
                f"{name}: {found[name]} on {os.uname().nodename}, expected {wanted}; install "
                "requirements.lock, and name its interpreter as python in the site file"
            )
    return found


def gpus(bundle: dict) -> int:
    """How many GPUs this node offers; refused when they are fewer than its ranks."""
    needed = bundle["layout"]["gpus_per_node"]
    if bundle["device"] == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES")
    count = len(visible.split(",")) if visible else _listed()
    if count < needed:
        raise Refused(
            f"{count} GPUs on {os.uname().nodename}, expected {needed}; see gpu in the site file"
        )
    return count


def _listed() -> int:
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def shared_memory(bundle: dict) -> None:
    at = os.statvfs("/dev/shm")
    room, needed = at.f_bavail * at.f_frsize, bundle["shm_bytes"]
    if room < needed:
        raise Refused(
            f"/dev/shm: {room >> 20} MiB free on {os.uname().nodename}, expected {needed >> 20}; remove "
            "what was left there, or enlarge it"
        )


def scratch(place: Place, site: Site) -> Path:
    """A new node-local folder, whose path is short enough for sockets."""
    parent = site.get("scratch") or os.environ.get("TMPDIR") or "/tmp"
    name = f"ingot-{place.job}-{place.rank}-"
    length = len(os.fsencode(Path(parent, name))) + 8
    if length > SOCKET - OWN:
        raise Refused(
            f"{parent}: {length} bytes with a folder of ours in it, expected at most {SOCKET - OWN}, since "
            "sockets lie there; set scratch in the site file"
        )
    if (kind := _kind(Path(parent))) in SHARED:
        raise Refused(
            f"{parent}: is {kind}, expected a disk of the node; set scratch in the site file"
        )
    try:
        return Path(tempfile.mkdtemp(prefix=name, dir=parent))
    except OSError as error:
        raise Refused(f"{parent}: {error.strerror}; set scratch in the site file") from None


def _kind(folder: Path) -> str:
    """The file system that holds it."""
    found, best = "", -1
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= best:
            found, best = kind, len(point)
    return found
