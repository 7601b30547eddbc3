"""Build an ONNX folder by onnxruntime-genai's own builder.  Runs in envs/genai.

For the architectures that Ingot has no table of.  The folder is what the builder's command writes in
float32 for CPUs, and config.json beside it.  It runs no code of the checkpoint and asks no hub.
"""

import os
import shutil
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.upstream import in_its_words

SMALL = ("config.json", "generation_config.json")  # that other consumers of the folder read


def build_onnx(
    checkpoint: Checkpoint,
    onnx: Annotated[Path, "the folder to write"],
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with (
        checkpoint.as_folder() as folder,
        replacing(onnx) as partial,
        stderr_to_log(f"{onnx}: building by onnxruntime-genai"),
        in_its_words("onnxruntime-genai's builder", checkpoint, folder),
    ):
        import torch
        from onnxruntime_genai.models import builder

        # Seen once, on a busy machine: the second thread's half of rope's cosines had other last bits.
        torch.set_num_threads(1)
        scratch = partial / "scratch"  # where it keeps the weights until it writes them
        asked = ("", str(folder), str(partial), "fp32", "cpu", str(scratch))
        builder.create_model(*asked, **builder.parse_extra_options(*asked, ["hf_token=false"]))
        shutil.rmtree(scratch, ignore_errors=True)
        left = [name for name in SMALL if not (partial / name).exists()]
        sealed.fill(partial, {one: checkpoint[one] for one in left if one in checkpoint})


if __name__ == "__main__":
    step(build_onnx)
