"""Cut a checkpoint into torchpipe's file set: all weights here, attention there.  Runs in envs/onnx.

One read and one write, constant memory, without torch; the embedding as .pt and as .safetensors.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.options import Architecture, TokenizerFiles, step
from ingot.formats.onnx import weights, write
from ingot.formats.onnx.torchpipe.split import CAN, EMBEDDING, Split, contents, graphs
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.specs import TensorSpec, specs_of
from ingot.model.tensors import pt
from ingot.model.tensors.dtypes import TYPES

ADVICE = "set onnx.torchpipe.dtype to fp32"


def split_onnx(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    torchpipe: Annotated[Path, "the folder to write"],
    split: Split,
    architecture: Architecture = None,
) -> None:
    source = checkpoint["config.json"]
    config = read_config(source, architecture, can=CAN)
    expected, layout = graphs(split.cut(source, config), split)
    with (
        Rows(checkpoint, config, torchpipe.name, advice=ADVICE) as rows,
        replacing(torchpipe) as partial,
    ):
        rows.check({s.source: s.shape for s in specs_of(config, "f32") if s.source})
        partial.mkdir()
        hashed = write.write(rows, layout, partial, torchpipe)
        write_embedding(rows, partial, split.form.float)
        rows.finish()
        for name, content in expected.items():
            (partial / name).write_bytes(content)
        sealed.fill(partial, contents(checkpoint, tokenizer), hashed)


def write_embedding(rows: Rows, folder: Path, dtype: str) -> None:
    """Twice, from one read: as torch.save writes it, and as safetensors."""
    shape = rows.tensors[weights.EMBEDDING].shape
    spec = TensorSpec(weights.EMBEDDING, weights.EMBEDDING, shape, TYPES[dtype])
    size = spec.type.nbytes(shape)
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}
    head = json.dumps({"weight": entry}).encode()
    head += b" " * (-len(head) % 8)
    with ExitStack() as stack:
        file = stack.enter_context((folder / f"{EMBEDDING}.safetensors").open("wb"))
        file.write(len(head).to_bytes(8, "little") + head)

        def blocks() -> Iterator[memoryview]:
            for _, _, read in rows.blocks(spec):
                data = read()
                file.write(data)
                yield data

        pt.write(folder / f"{EMBEDDING}.pt", dtype, shape, blocks())


if __name__ == "__main__":
    step(split_onnx)
