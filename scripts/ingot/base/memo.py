"""Which digest a file had when it had this stamp: so that no file is read twice to learn it.

A memo speaks of one state of one file: its file system, inode, size, and the times of its last write
(mtime) and of its last change of any kind (ctime, which no program can set back).  Any edit, even one
that restores size and mtime, has another stamp, and the file is read again.

What was written is on the disk half a minute later.  Until somebody has seen to that, a memo holds
for this boot of this machine only: after a power loss the file is read again.
"""

import contextlib
import functools
import hashlib
import mmap
import os
import re
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from ingot.base.durable import regular_bytes
from ingot.base.shared import make_folder, share

BESIDE = Path(".ingot/store")  # in the working folder, when the store is read-only
TENSORS = ".tensors"  # the other identity of a checkpoint's shard: see model/checkpoint/identity.py
KINDS = ("", TENSORS)
MEMORY = ("tmpfs", "ramfs")  # where a write through a mapping changes no time at all
# whose every write changes a time, and of which no program can set the ctime back
DISKS = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "nfs", "nfs4", "lustre", "gpfs",
    "ceph", "beegfs", "ocfs2", "gfs2", "squashfs", "erofs", "iso9660",
)  # fmt: skip
TICK = 20_000_000  # ns, in which a kernel's clock of files moves: every 4 or 10 ms
MOUNTS = Path("/proc/self/mountinfo")
BOOT = Path("/proc/sys/kernel/random/boot_id")
DIGEST = re.compile(r"(?:sha256|tree|tensors):[0-9a-f]{64}")


def home() -> Path:
    """The store: INGOT_STORE, or else below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return _resolved(os.environ.get("INGOT_STORE") or f"{cache}/ingot/store")


@functools.cache
def _resolved(path: str) -> Path:
    return Path(path).resolve()


def stamp(path: Path | str, state: os.stat_result) -> str:
    """What tells this state of the file at `path` from any other; last its ctime, which no program sets."""
    where = file_system(os.fspath(path), state.st_dev)
    times = f"{state.st_mtime_ns:x}-{state.st_ctime_ns:x}"
    return f"{where}-{state.st_ino:x}-{state.st_size:x}-{times}"


_file_systems: dict[int, str] = {}  # by device


def file_system(path: str, device: int) -> str:
    """A name of the file system that lasts: the same after a reboot, and on each host that mounts it.

    Two of them may have files of one inode, size and time.  `memory` and the device where no memo can be
    kept: in memory, and where a file that is written to shows that its times do not tell (FUSE).
    """
    if device not in _file_systems:
        place = os.path.realpath(path)
        kind, source = _mount(device, place)
        if kind in MEMORY or (kind not in DISKS and not _times_tell(place, device)):
            _file_systems[device] = f"memory{device:x}"
        else:
            named = hashlib.sha256(f"{kind} {source}".encode()).hexdigest()[:16]
            number = os.statvfs(path).f_fsid  # 0 where there is none, as on NFS
            _file_systems[device] = f"{number:x}" if number else named
    return _file_systems[device]


def kind_of(path: Path | str) -> str:
    """The type of the file system that `path` lies on, such as xfs; empty where the system does not say."""
    place = os.path.realpath(path)
    return _mount(os.stat(place).st_dev, place)[0]


def _times_tell(path: str, device: int) -> bool:
    """Does a write through a mapping change a time on `device`, and ctime go on where mtime is set back?

    Tried beside the file at `path`, or in another folder there that may be written; False where none may.
    """
    for folder in (os.path.dirname(path), os.getcwd(), str(home())):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:  # without a name
                if os.fstat(file.fileno()).st_dev == device:
                    return _tell(file)
        except (OSError, ValueError):
            continue
    return False


def _tell(file: BinaryIO) -> bool:
    file.write(bytes(mmap.PAGESIZE))
    file.flush()
    os.fsync(file.fileno())
    before = os.fstat(file.fileno())
    time.sleep(TICK / 1e9)
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = mapped[1] + 1  # read first: a page in memory may then be written unseen
        mapped.flush()
    written = os.fstat(file.fileno())
    os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.fstat(file.fileno())
    seen = (written.st_mtime_ns, written.st_ctime_ns) != (before.st_mtime_ns, before.st_ctime_ns)
    return seen and after.st_ctime_ns != before.st_ctime_ns


def _mount(device: int, path: str) -> tuple[str, str]:
    """Type and source of what is mounted as `device`, or where `path` lies, whose device may be of a part
    of it (btrfs); empty where the system does not say."""
    name, best = f"{os.major(device)}:{os.minor(device)}", ("", "", "")
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            _, _, number, _, point, *_ = left.split()
            kind, source, *_ = right.split()
            if number == name:
                return kind, source
            inside = f"{path}/".startswith(f"{point.rstrip('/')}/")
            if kind == "btrfs" and inside and len(point) >= len(best[0]):
                best = point, kind, source
    return best[1:]


def stamp_of(path: Path | str) -> str | None:
    """The stamp of a file, following links; None when there is no such file."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stamp(path, state) if stat.S_ISREG(state.st_mode) else None


def known(path: Path | str, kind: str = "") -> str | None:
    """The digest of a file if it is on record for its present state; nothing is read."""
    found = stamp_of(path)
    return found and recall(found, kind)


def recall(found: str, kind: str = "") -> str | None:
    """The digest of the file that has stamp `found`; `kind` is that of another identity of it."""
    digest, boot = _recall(found, kind)
    return digest if boot in ("", this_boot()) else None


def _recall(found: str, kind: str) -> tuple[str | None, str]:
    """The digest, and the boot that alone it holds for; empty once the file is on the disk."""
    name = f"{found}{kind}"
    if name in _here:
        return _here[name]
    for store in () if found.startswith("memory") else (home(), BESIDE):
        try:
            digest, _, boot = regular_bytes(_memo(store, name)).decode().partition(" ")
        except (OSError, ValueError):
            continue
        if DIGEST.fullmatch(digest):  # else: the disk was full as it was written
            _here[name] = digest, boot
            return digest, boot
    return None, ""


def remember(found: str, digest: str, kind: str = "", durable: bool = False) -> None:
    """Put it on record that the file of stamp `found` holds `digest`; a memo lost costs a reading.

    `durable` says that the file has been synced.
    """
    ctime = int(found.rpartition("-")[2], 16)  # ns
    if ctime % 1_000_000_000 == 0:
        return  # a file system that counts seconds, and may let programs set them
    name, boot = f"{found}{kind}", "" if durable else this_boot()
    if _here.get(name) == (digest, boot):
        return
    _here[name] = digest, boot
    for store in () if found.startswith("memory") else (home(), BESIDE):
        memo = _memo(store, name)
        partial = memo.with_name(f".{memo.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            make_folder(memo.parent, store)
            partial.write_text(f"{digest} {boot}".strip())
            share(partial, store)
            partial.replace(memo)
            return
        except OSError:  # a full disk, a read-only store
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


_here: dict[str, tuple[str, str]] = {}  # what this process knows, wherever it could write it down


def _memo(store: Path, name: str) -> Path:
    """In one of 256 folders, by two digits of the ctime that differ from file to file."""
    return store / "memo" / name.partition(".")[0][-9:-7] / name


@functools.cache
def this_boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return f"unknown {os.getpid()} {time.time_ns()}"  # no other process believes it


def vouch(path: Path, before: os.stat_result, digest: str, kind: str = "") -> None:
    """Remember `digest` under the file's new stamp, unless more than its names changed."""
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        durable = _recall(stamp(path, before), kind) == (digest, "")
        remember(stamp(path, after), digest, kind, durable)
