"""Assemble a Triton model repository that is complete in itself.  Runs in envs/triton.

With an engine: an ensemble of preprocessing, the engine and postprocessing, and the same in Python.
Without: the LLM API on a checkpoint.  The folder works wherever it is moved, mounted or copied to.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.options import step
from ingot.formats.tensorrt.triton import contents as contents_of


def assemble_triton(
    repository: Annotated[Path, "the folder to write"],
    parts: contents_of.Parts,
) -> None:
    sealed.assemble(repository, contents_of.contents(**vars(parts)))


if __name__ == "__main__":
    step(assemble_triton)
