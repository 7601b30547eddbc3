"""What a killed server leaves in shared memory goes: files, and named semaphores."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT

PART = """
import _multiprocessing, mmap, os, sys, time
name = sys.argv[1]
lock = _multiprocessing.SemLock(1, 1, 1, f"/{name}", False)
with open(f"/dev/shm/{name}.memory", "w+b") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
open(f"/dev/shm/{name}.other", "w")
print("there", flush=True)
time.sleep(600)
"""
SERVER = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from leftovers import Leftovers
left = Leftovers([])
part = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[3]], stdout=subprocess.PIPE,
                        env={**os.environ, **left.environment}, start_new_session=True)
part.stdout.readline()
if sys.argv[4] == "looks":
    left.look()
    print(*sorted(left.memory), flush=True)
    os.kill(part.pid, 9)
    part.wait()
    os.kill(os.getpid(), 9)
left.end(part.poll)
"""


@pytest.mark.parametrize("how", ["ends", "looks"])
def test_a_killed_server_leaves_no_semaphore_and_no_memory(tmp_path, how):
    """Either the program that started it ends it, or, when that is killed as well, its reaper."""
    name = f"ingot-{tmp_path.parent.name}-{how}"
    words = [sys.executable, "-c", SERVER, ROOT / "runtime/vllm", PART, name, how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    other = Path(f"/dev/shm/{name}.other")
    try:
        assert other.exists(), "which nobody has open"
        assert done.returncode == (0 if how == "ends" else -9), done.stderr
        assert how == "ends" or "sem." in done.stdout, done.stdout
        for _ in range(200):  # the reaper's time
            found = [path for path in Path("/dev/shm").glob(f"*{name}*") if path != other]
            if not found:
                break
            time.sleep(0.1)
        assert not found
    finally:
        other.unlink(missing_ok=True)
