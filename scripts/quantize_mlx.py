"""Rewrite a checkpoint for MLX, as it is or in codes of four or eight bits.  Runs in envs/convert.

One read and one write, a megabyte per thread in memory, without mlx: the tensors are bit for bit those of
mlx_lm.convert on a CPU.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.options import Architecture, TokenizerFiles, step
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.quantised import mlx, mlx_folder
from ingot.model.checkpoint.quantised.write import shapes
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config


def quantize_mlx(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    mlx_: Annotated[Path, "the folder to write"],
    bits: Annotated[int, "of a code; 0: as it is", (0, 4, 8)] = 0,
    architecture: Architecture = None,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, mlx.CAN)
    if reason := mlx.why_not(config.family):
        raise Refused(f"{checkpoint['config.json']}: {reason}")
    with Rows(checkpoint, config, mlx_.name) as rows, replacing(mlx_) as partial:
        rows.check(shapes(config))
        said = mlx.dtype_of(checkpoint["config.json"])
        held = mlx.tensors(config, bits, lambda name: said or rows.tensors[name].dtype)
        files = mlx.shards(held)
        partial.mkdir(exist_ok=True)
        hashed = mlx.write(rows, files, partial, mlx_)
        rows.finish()
        small = mlx_folder.contents(checkpoint, tokenizer, config, files, bits)
        sealed.fill(partial, small, hashed)


if __name__ == "__main__":
    step(quantize_mlx)
