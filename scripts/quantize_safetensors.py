"""Quantise a checkpoint for vLLM, in compressed-tensors' format.  Runs in envs/convert.

No calibration: one read (nvfp4: two) and one write, a megabyte per thread in memory, without torch.
With --quotient stored the tensors are bit for bit those of llm-compressor's model_free_ptq on a CPU.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.options import Architecture, TokenizerFiles, step
from ingot.model import features
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.quantised import folder, write
from ingot.model.checkpoint.quantised.schemes import FLOAT32, SCHEMES, STORED_TO
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config


def quantize_safetensors(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    safetensors: Annotated[Path, "the folder to write"],
    scheme: Annotated[str, "of weights", tuple(SCHEMES)],
    architecture: Architecture = None,
    quotient: Annotated[
        str, "rounded to float32, or to the dtype of the weights", (FLOAT32, STORED_TO)
    ] = FLOAT32,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, features.ALL)
    asked, sets = SCHEMES[scheme], {}
    if asked.of_sets:
        with Rows(checkpoint, config, f"{safetensors.name}: largest weights") as rows:
            rows.check(write.shapes(config))
            sets = write.largest_of_sets(write.Plan(rows, asked))
            rows.finish()
    with Rows(checkpoint, config, safetensors.name) as rows, replacing(safetensors) as partial:
        rows.check(write.shapes(config))
        plan = write.Plan(rows, asked)
        partial.mkdir(exist_ok=True)
        hashed = write.write(plan, partial, safetensors, quotient, sets)
        rows.finish()
        sealed.fill(partial, folder.contents(plan, tokenizer), hashed)


if __name__ == "__main__":
    step(quantize_safetensors)
