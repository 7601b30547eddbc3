"""Export a checkpoint as ONNX: a decoder, in a folder that needs nothing else.  Runs in envs/onnx.

One read and one write, some 35 MB of memory at any size, without torch.  The folder loads in ONNX
Runtime, in onnxruntime-genai and in optimum's ORTModelForCausalLM.
"""

import argparse
from pathlib import Path

from ingot.architecture.config import read_config
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.checkpoint.rows import Rows
from ingot.entry import run
from ingot.files import sealed
from ingot.files.atomic import replacing
from ingot.onnx import decoder, folder, weights, write

ADVICE = "ask for M.onnx, which is float32"


def export_onnx(
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    onnx: Path,
    export: folder.Export,
    architecture: str | None = None,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, can=weights.CAN)
    export.hold(checkpoint["config.json"], config)
    graph, layout = decoder.build(config, export.form, export.graph)
    small = folder.contents(checkpoint, tokenizer, config, export)
    with Rows(checkpoint, config, onnx.name, advice=ADVICE) as rows, replacing(onnx) as partial:
        rows.check({stored.source: stored.shape for stored in layout.stored})
        partial.mkdir()
        hashed = write.write(rows, layout, partial, onnx)
        rows.finish()
        (partial / decoder.GRAPH).write_bytes(graph)
        sealed.fill(partial, small, hashed)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument("--tokenizer", type=Path, nargs="+", required=True, help="its small files")
    folder.add_options(parser)
    parser.add_argument("--onnx", type=Path, required=True, help="the folder to write")
    options = vars(parser.parse_args(argv))
    export = folder.export_of(options)
    export_onnx(export=export, **options)


if __name__ == "__main__":
    run(main)
