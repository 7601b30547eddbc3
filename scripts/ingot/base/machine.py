"""What this machine has."""

import os
import platform
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT = Path("/sys/fs/cgroup/memory.max")
PROCESSOR = Path("/proc/cpuinfo")


def memory() -> int:
    """Bytes that a process may hold here: the machine's, or less where a limit is set."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(LIMIT.read_text()))
    except (OSError, ValueError):  # none, or `max`
        return whole


def cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0))


def bandwidth() -> float:
    """Bytes a second that the cores read from memory together: the best of some rounds."""
    import numpy as np

    each = min(64 << 20, memory() // (8 * cores()))  # bytes of a core: more than its cache
    held = [np.ones(each // 8, np.int64) for _ in range(cores())]
    found = 0.0
    with ThreadPoolExecutor(cores()) as pool:
        for _ in range(5):
            begun = time.perf_counter()
            assert sum(pool.map(np.max, held)) == cores()
            found = max(found, each * cores() / (time.perf_counter() - begun))
    return found


def processor() -> str:
    """Its name as the kernel has it, with the cores that this process may run on."""
    try:
        said = re.search(r"^model name\s*:\s*(.+)$", PROCESSOR.read_text(), re.M)
    except OSError:
        said = None
    return f"{said[1] if said else platform.machine()}, {cores()} cores"
