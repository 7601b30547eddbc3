"""Build a toolchain into the cache, unless it is there, and print its folder."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.toolchains import toolchains


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="+", help="a folder of envs/")


def run(root: Path, options: Namespace) -> None:
    for name in options.name:
        print(toolchains.build(root, name))
