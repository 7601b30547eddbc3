"""Compile kernels.c, by clang out of ziglang, so that none need be installed on the machine.

    <this toolchain's python> build.py FOLDER

Leaves FOLDER/kernels.so.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().with_name("kernels.c")
FLAGS = (
    "-target", "x86_64-linux-gnu.2.28", "-mcpu=x86_64_v3",  # the same code on every machine
    "-std=c11", "-O3", "-ffp-contract=on", "-fno-strict-aliasing",
    "-fno-sanitize=undefined", "-fPIC", "-shared", "-nostdlib", "-s", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip


def build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # zig keeps its own objects: not in the user's home
        places = {f"ZIG_{one}_CACHE_DIR": scratch for one in ("GLOBAL", "LOCAL")}
        words = ("ziglang", "cc", *FLAGS, "-o", folder / "kernels.so", SOURCE)
        run(words, {**os.environ, **places})
    run(("pip", "uninstall", "--quiet", "--yes", "ziglang"), None)


def run(words: tuple, environment: dict | None) -> None:
    # -P: the working folder may hold a types.py of the user's
    command = [sys.executable, "-P", "-m", *(str(word) for word in words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        sys.exit(f"{' '.join(command[3:5])} ...: exit status {done.returncode}:\n{tail}")


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
