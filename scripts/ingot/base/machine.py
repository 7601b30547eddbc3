"""What this machine has."""

import contextlib
import os
import platform
import re
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # version 2 of them
PROCESSOR, FREE = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def memory() -> int:
    """Bytes that a process may hold here: the machine's, or less where a limit is set."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(most for _, most in _limits())])


def available() -> int:
    """Bytes of it that nobody holds now."""
    found = [memory()]
    with contextlib.suppress(OSError):
        said = re.search(r"^MemAvailable:\s*(\d+) kB$", FREE.read_text(), re.M)
        found += [int(said[1]) << 10] if said else []
    for folder, most in _limits():
        with contextlib.suppress(OSError, ValueError):
            cached = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.M)
            held = int((folder / "memory.current").read_text()) - (int(cached[1]) if cached else 0)
            found.append(max(0, most - held))
    return min(found)


def _limits() -> list[tuple[Path, int]]:
    """Of this process's control group and those above it: a job's of SLURM, a container's, a service's."""
    try:
        own = re.search(r"^0::/(.*)$", OWN.read_text(), re.M)
    except OSError:
        own = None
    place, found = GROUPS / (own[1] if own else ""), []
    for folder in (place, *place.parents):
        if not folder.is_relative_to(GROUPS):
            break
        with contextlib.suppress(OSError, ValueError):  # none, or `max`
            found.append((folder, int((folder / "memory.max").read_text())))
    return found


def cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Its name as the kernel has it, with the cores that this process may run on."""
    try:
        said = re.search(r"^model name\s*:\s*(.+)$", PROCESSOR.read_text(), re.M)
    except OSError:
        said = None
    return f"{said[1] if said else platform.machine()}, {cores()} cores"
