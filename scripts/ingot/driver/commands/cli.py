"""The `ingot` command: what Ingot adds to Snakemake.

`ingot COMMAND --help` says what each option does.
"""

import argparse
import os
import sys
from pathlib import Path

from ingot.driver.catalogue import site
from ingot.driver.commands import (
    ask,
    demo,
    doctor,
    explain,
    lock,
    matrix,
    numbers,
    plan,
    status,
    store,
    targets,
    toolchain,
    wheels,
)
from ingot.entry import run
from ingot.refused import one_line

ROOT = Path(__file__).resolve().parents[4]
COMMANDS = (
    targets,
    plan,
    explain,
    status,
    matrix,
    numbers,
    store,
    doctor,
    toolchain,
    wheels,
    lock,
    ask,
    demo,
)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="ingot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = found.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        sub = subparsers.add_parser(
            module.__name__.rpartition(".")[2],
            help=module.__doc__.splitlines()[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(sub)
        sub.set_defaults(run=module.run)
    return found


def main(argv: list[str] | None = None) -> int | None:
    options = parser().parse_args(argv)
    with one_line("error: "):
        site.apply()
        try:
            status = options.run(ROOT, options)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
    return status


if __name__ == "__main__":
    run(main)
