"""What this machine has."""

import os
import platform
import re
from pathlib import Path

LIMIT = Path("/sys/fs/cgroup/memory.max")
PROCESSOR, FREE = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def memory() -> int:
    """Bytes that a process may hold here: the machine's, or less where a limit is set."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(LIMIT.read_text()))
    except (OSError, ValueError):  # none, or `max`
        return whole


def available() -> int:
    """Bytes of it that nobody holds now."""
    try:
        said = re.search(r"^MemAvailable:\s*(\d+) kB$", FREE.read_text(), re.M)
    except OSError:
        said = None
    return min(memory(), int(said[1]) << 10) if said else memory()


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
