"""What this machine has."""

import os
from pathlib import Path

LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory() -> int:
    """Bytes that a process may hold here: the machine's, or less where a limit is set."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(LIMIT.read_text()))
    except (OSError, ValueError):  # none, or `max`
        return whole
