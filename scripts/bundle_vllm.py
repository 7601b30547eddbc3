"""Assemble all that vLLM on SLURM needs in one folder.  Runs in the driver's environment.

The folder is complete in itself: it works wherever it is moved, mounted or copied to.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.options import step
from ingot.serving.vllm import bundle as bundle_of


def bundle_vllm(
    bundle: Annotated[Path, "the folder to write"],
    parts: bundle_of.Parts,
) -> None:
    sealed.assemble(bundle, bundle_of.contents(**vars(parts)))


if __name__ == "__main__":
    step(bundle_vllm)
