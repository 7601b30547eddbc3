"""Serve a shortfin bundle on this machine and ask it once."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.catalogue import toolchains
from ingot.iree.shortfin import Server


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="such as artifacts/M_tp1.shortfin")
    parser.add_argument("text", help="the prompt, special tokens spelt out")


def run(root: Path, options: Namespace) -> None:
    with Server(options.bundle, toolchains.python(root, "iree")) as server:
        print(server.generate(text=options.text))
