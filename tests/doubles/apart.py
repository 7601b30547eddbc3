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


OWN = """\
ip link set lo up && ip address add 192.0.2.1/32 dev lo &&
exec setpriv --ambient-caps=-all --inh-caps=-all "$@"
"""


def words(*command: str | Path) -> list[str]:
    """A command in a network of its own, by any user; the loopback and one address beside it."""
    if not shutil.which("ip"):
        pytest.skip("a network of its own needs ip (Debian: iproute2)")
    user = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net"]
    return [*user, "sh", "-c", OWN, "sh", *map(str, command)]


@contextlib.contextmanager
def network() -> Iterator[None]:
    """For this thread and all that it starts: by root alone."""
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
