"""Collect toolchains' packages into wheels/, for a machine without a package index.

    make wheels          here; then copy the repository with wheels/, and `make demo` there asks no index

INGOT_WHEELS names another folder.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.toolchains import toolchains, wheels


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", help="folders of envs/ (default: all)")


def run(root: Path, options: Namespace) -> None:
    names = toolchains.names(root)
    for name in options.name or names:
        if name not in names:
            raise Refused(f"{name}: no toolchain, expected one of {', '.join(names)}")
    for name in options.name or names:
        print(f"{name}: collecting into {wheels.folder()}", file=sys.stderr, flush=True)
        wheels.folder().mkdir(parents=True, exist_ok=True)
        toolchains.collect(root, name)
    size = sum(path.stat().st_size for path in wheels.folder().iterdir())
    print(f"{wheels.folder()}: {size / 1e9:.1f} GB")
