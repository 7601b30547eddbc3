"""Assemble all that KubeRay needs to serve a model in one folder.  Runs in the driver's environment.

The folder is complete in itself: it works wherever it is moved, mounted or copied to.
"""

import argparse
from pathlib import Path

from ingot.entry import run
from ingot.files import sealed
from ingot.files.atomic import replacing
from ingot.kuberay import bundle as bundle_of
from ingot.rayserve import bundle as rayserve


def bundle_kuberay(bundle: Path, **parts) -> None:
    contents = bundle_of.contents(**parts)
    with replacing(bundle) as partial:
        partial.mkdir()
        sealed.fill(partial, contents)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    rayserve.add_options(parser)
    parser.add_argument("--bundle", type=Path, required=True, help="the folder to write")
    bundle_kuberay(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
