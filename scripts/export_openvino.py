"""Export a checkpoint as OpenVINO IR, in a folder that LLMPipeline serves.  Runs in envs/openvino.

By way of our ONNX graph of standard operators, which is deleted again; some 90 MB of memory at any size,
without torch.
"""

from pathlib import Path
from typing import Annotated

from ingot.base.options import Architecture, TokenizerFiles, step
from ingot.formats.onnx.openvino.folder import FloatLayers, Weights, form_of, write_folder
from ingot.model.checkpoint.files import Checkpoint


def export_openvino(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    openvino: Annotated[Path, "the folder to write"],
    architecture: Architecture = None,
    dtype: Weights = "fp32",
    float_layers: FloatLayers = (),
) -> None:
    write_folder(checkpoint, tokenizer, openvino, form_of(dtype, float_layers), architecture)


if __name__ == "__main__":
    step(export_openvino)
