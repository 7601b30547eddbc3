"""Export a checkpoint as ONNX: a decoder, in a folder that needs nothing else.  Runs in envs/onnx.

One read and one write, some 35 MB of memory at any size, without torch.  The folder loads in ONNX
Runtime, in onnxruntime-genai and in optimum's ORTModelForCausalLM.
"""

from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.options import Architecture, TokenizerFiles, step
from ingot.formats.onnx import decoder, folder, weights, write
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config

ADVICE = "ask for M.onnx, which is float32"


def export_onnx(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    onnx: Annotated[Path, "the folder to write"],
    export: folder.Export,
    architecture: Architecture = None,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, can=weights.CAN)
    export.hold(checkpoint["config.json"], config)
    graph, layout = decoder.build(config, export.form, export.graph)
    small = folder.contents(checkpoint, tokenizer, config, export)
    with Rows(checkpoint, config, onnx.name, advice=ADVICE) as rows, replacing(onnx) as partial:
        rows.check({stored.source: stored.shape for stored in layout.stored})
        partial.mkdir(exist_ok=True)
        hashed = write.write(rows, layout, partial, onnx)
        rows.finish()
        (partial / decoder.GRAPH).write_bytes(graph)
        sealed.fill(partial, small, hashed)


if __name__ == "__main__":
    step(export_onnx)
