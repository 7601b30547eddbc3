"""Assemble a Triton model repository that is complete in itself.  Runs in envs/triton.

With an engine: an ensemble of preprocessing, the engine and postprocessing, and the same in Python.
Without: the LLM API on a checkpoint.  The folder works wherever it is moved, mounted or copied to.
"""

import argparse
from pathlib import Path

from ingot.entry import run
from ingot.files import sealed
from ingot.files.atomic import replacing
from ingot.triton import contents as contents_of


def assemble_triton(repository: Path, **parts) -> None:
    contents = contents_of.contents(**parts)
    with replacing(repository) as partial:
        partial.mkdir()
        sealed.fill(partial, contents)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    contents_of.add_options(parser)
    parser.add_argument("--repository", type=Path, required=True, help="the folder to write")
    assemble_triton(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
