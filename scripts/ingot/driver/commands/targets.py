"""What can be asked for: every target of the catalogue, or of one model."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.model import stop_on_refusal
from ingot.driver.catalogue.targets import legal, legal_of


def add_catalogue(parser: ArgumentParser) -> None:
    """The option of every command that reads the catalogue."""
    parser.add_argument(
        "--configfile", metavar="FILE", help="your own catalogue, merged as Snakemake does it"
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model of the catalogue (default: all)")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    catalogue = schema.load(root, options.configfile)
    if options.model and options.model not in catalogue["models"]:
        known = ", ".join(catalogue["models"])
        raise Refused(f"{options.model}: unknown model, expected one of {known}")
    stop_on_refusal(options.model, catalogue)
    names = legal_of(options.model, catalogue) if options.model else legal(catalogue)
    for target in names:
        print(target)
