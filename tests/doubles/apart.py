"""A network of one's own, with a loopback and nothing else: for servers that listen on every address."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def network() -> Iterator[None]:
    """For this thread and what it starts.  By root alone: a program with threads gets no user namespace."""
    if not shutil.which("ip"):
        pytest.skip("a network of its own needs ip (Debian: iproute2)")
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as usual:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip(f"a network of its own: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            # of documentation (RFC 5737): SLURM resolves no name where there is 127.0.0.1 alone
            subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
            yield
        finally:
            assert libc.setns(usual.fileno(), CLONE_NEWNET) == 0
