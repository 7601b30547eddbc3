"""Start a bundle's ./serve while Ray's agents are stopped, as on a machine that is too busy for them.

    <python> rayserve_slow.py BUNDLE HOW_MANY UNTIL

In a network of its own. HOW_MANY agents are stopped, one of each start; it is told to end once it has said
UNTIL, or that many seconds after the first agent was seen. Prints its exit status, its words, and which
processes are left.
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
    agents, seen, asked, began = set(), 0.0, False, time.monotonic()
    later = float(until) if until.replace(".", "").isdigit() else None
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen([f"{bundle}/serve", "--port=18000"], stdout=said)
        while time.monotonic() - began < LIMIT and server.poll() is None:
            for pid, words in ours():
                is_agent = b"dashboard/agent.py" in words and b"raylet/raylet" not in words
                if is_agent:
                    seen = seen or time.monotonic()
                if is_agent and pid not in agents and len(agents) < int(most):
                    os.kill(pid, signal.SIGSTOP)
                    agents.add(pid)
            said.seek(0)
            words = said.read()
            due = until in words if later is None else seen and time.monotonic() - seen >= later
            if due and not asked:
                server.terminate()
                asked = True
            time.sleep(0.1)
        status, left = server.poll(), [pid for pid, _ in ours()]
        said.seek(0)
        print(json.dumps([status, said.read(), left]))
    server.kill()


main(*sys.argv[1:])
