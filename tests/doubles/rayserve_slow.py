"""Start a bundle's ./serve while Ray's agents are stopped, as on a machine that is too busy for them.

    <python> rayserve_slow.py BUNDLE HOW_MANY UNTIL

In a network of its own. HOW_MANY agents are stopped, one of each start; it is told to end once it has said
UNTIL (`at once`: when the first agent is stopped). Prints its exit status, words, seconds since then, and
processes left.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 200  # seconds


def ours():
    """The processes in this network, and their commands."""
    own = Path("/proc/self/ns/net").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/net").readlink() == own and int(path.name) != os.getpid():
                yield int(path.name), (path / "cmdline").read_bytes()
        except OSError:
            continue


def main(bundle, most, until):
    agents, asked, began = set(), 0, time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen([f"{bundle}/serve", "--port=18000"], stdout=said)
        while time.monotonic() - began < LIMIT and server.poll() is None:
            for pid, words in ours():
                is_agent = b"dashboard/agent.py" in words and b"raylet/raylet" not in words
                if is_agent and pid not in agents and len(agents) < int(most):
                    os.kill(pid, signal.SIGSTOP)
                    agents.add(pid)
            said.seek(0)
            words = said.read()
            if not asked and (until in words or (until == "at once" and agents)):
                server.terminate()
                asked = time.monotonic()
            time.sleep(0.1)
        status, left = server.poll(), [pid for pid, _ in ours()]
        said.seek(0)
        print(json.dumps([status, said.read(), time.monotonic() - asked, left]))
    server.kill()


main(*sys.argv[1:])
