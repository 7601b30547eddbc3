"""What can be asked for: every target of the catalogue, or of one model."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from ingot.driver.catalogue import schema
from ingot.driver.catalogue.model import stop_on_refusal
from ingot.driver.catalogue.targets import legal, legal_of, stop_on_unknown


def add_catalogue(parser: ArgumentParser) -> None:
    """The option of every command that reads the catalogue."""
    parser.add_argument(
        "--configfile", metavar="FILE", help="your own catalogue, merged as Snakemake does it"
    )


def above_0(kind: type) -> Callable[[str], Any]:
    """The type of an option that takes a number above 0."""

    def read(text: str) -> Any:
        if not 0 < (value := kind(text)) < inf:
            raise ArgumentTypeError(f"{text}, expected a number above 0")
        return value

    read.__name__ = kind.__name__  # in argparse's words on what is no number
    return read


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model of the catalogue (default: all)")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    catalogue = schema.load(root, options.configfile)
    stop_on_refusal(options.model, catalogue)
    if options.model:
        stop_on_unknown(options.model, catalogue)
    names = legal_of(options.model, catalogue) if options.model else legal(catalogue)
    for target in names:
        print(target)
