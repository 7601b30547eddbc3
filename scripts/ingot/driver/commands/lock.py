"""Resolve a toolchain's requirements.in again, and write its lock: every package with its hash."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.catalogue import toolchains


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a folder of envs/")


def run(root: Path, options: Namespace) -> None:
    print(toolchains.lock(root, options.name))
