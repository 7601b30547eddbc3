"""Quantise a checkpoint to libllama's types, all of them from one read.  Runs in envs/llamacpp.

libllama says which tensor gets which type, and quantises the rows; they come straight from the
checkpoint, a block at a time, so that no float file is written first and memory does not grow with
the model.  Each file is byte-identical to the one that llama-quantize makes of the float32 file.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base import claim, sealed, stream
from ingot.base.atomic import replacing_hashed
from ingot.base.options import Architecture, step
from ingot.base.refused import Refused
from ingot.formats.gguf import header, libllama, metadata, quantisations, quants
from ingot.formats.gguf.file import TensorInfo
from ingot.formats.gguf.file import layout as gguf_layout
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.plan import planned
from ingot.formats.gguf.quants import Imatrix
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config
from ingot.model.specs import TensorSpec, computed


@dataclass
class Output:
    """One file on its way, and where its tensors lie."""

    file: stream.Output
    infos: dict[str, TensorInfo]


TYPES = sorted(quantisations.ROWS)
MOST = 32  # threads: each has a megabyte or two of a file, and one thread hashes 1.5 GB/s of it


def quantize_gguf(
    checkpoint: Checkpoint,
    quant: Annotated[list[str], f"to write: {', '.join(TYPES)}", TYPES],
    name: Annotated[str, "general.name"],
    pre_tokenizer: Annotated[str, "such as llama-bpe"],
    gguf: Annotated[Path | None, "the file to write, of one type"] = None,
    folder: Annotated[Path | None, "artifacts/M.quants to write: M.TYPE.gguf each"] = None,
    stem: Annotated[str, "of the folder's files: M"] = "model",
    license: Annotated[str | None, "general.license"] = None,
    architecture: Architecture = None,
    imatrix: Annotated[Path | None, "by compute_imatrix.py"] = None,
) -> None:
    quantisations.stop_on_wrong_outputs(gguf, folder, quant)
    config = read_config(checkpoint["config.json"], architecture, metadata.CAN)
    if config.packed:
        raise Refused(f"{checkpoint['config.json']}: {quantisations.PACKED}")
    matrix = quants.read_imatrix(imatrix) if imatrix else None
    kvs = header.pairs(checkpoint, config, "f32", name, pre_tokenizer, license)
    with (
        Rows(checkpoint, config, (gguf or folder).name) as rows,
        replacing_hashed(gguf or folder) as partial,
        ExitStack() as stack,
    ):
        specs = {spec.name: spec for spec in rows.specs("f32")}
        paths = {quant[0]: partial.path}
        if folder:
            partial.path.mkdir(exist_ok=True)
            paths = {word: partial.path / f"{stem}.{word}.gguf" for word in quant}
        outputs = [
            opened(stack, gguf or folder, path, kvs, specs, word, matrix)
            for word, path in paths.items()
        ]
        order = [specs[name] for name in outputs[0].infos]
        turns = [rows.turns, *(output.file.turns for output in outputs)]
        for _ in rows.passes(*(output.file for output in outputs)):
            work = jobs(rows, order, outputs, matrix)
            stream.in_threads(work, turns, min(claim.cores(), MOST))
        rows.finish()
        hashes = [output.file.finish() for output in outputs]
        if folder:
            names = [path.name for path in paths.values()]
            sealed.seal(partial.path, dict(zip(names, hashes, strict=True)))
        else:
            partial.sha256 = hashes[0]


def opened(
    stack: ExitStack,
    named: Path,
    path: Path,
    kvs: list[KV],
    specs,
    quant: str,
    matrix: Imatrix | None,
) -> Output:
    """The file of one type, its header written; `named` is the target."""
    types = planned(named, kvs, list(specs.values()), quant, matrix)
    tensors = [(name, kind, specs[name].shape) for name, kind in types.items()]
    layout = gguf_layout(quants.header(kvs, quant, matrix), tensors)
    file = stream.Output(path, layout.size, named)
    stack.callback(file.close)
    file.put(layout.head, 0)
    return Output(file, {info.name: info for info in layout.entries})


def jobs(
    rows: Rows, specs: list[TensorSpec], outputs: list[Output], matrix: Imatrix | None
) -> Iterator[Callable[[], None]]:
    """One job per block of rows, in the order of the files."""

    def block(read: Callable[[], memoryview], tickets: list[int], spec, first: int) -> None:
        values = np.frombuffer(read(), np.float32).reshape(-1, spec.shape[-1])
        done: dict[str, np.ndarray] = {}  # two files may hold a tensor in the same type
        for output, ticket in zip(outputs, tickets, strict=True):
            info = output.infos[spec.name]
            if info.type.name not in done:
                columns = matrix.columns.get(spec.name) if matrix else None
                done[info.type.name] = libllama.quantised(values, info.type, columns)
            offset = info.offset + first * info.row_nbytes
            output.file.write(ticket, done[info.type.name], offset)

    def whole(data: bytes, tickets: list[int], spec) -> None:
        for output, ticket in zip(outputs, tickets, strict=True):
            output.file.write(ticket, data, output.infos[spec.name].offset)

    for spec in specs:
        if spec.source is None:
            factors = computed(rows.config, spec.name)
            data = struct.pack(f"<{len(factors)}f", *factors)
            yield functools.partial(whole, data, [one.file.ticket() for one in outputs], spec)
            continue
        for first, _, read in rows.blocks(spec):
            tickets = [one.file.ticket() for one in outputs]
            yield functools.partial(block, read, tickets, spec, first)


if __name__ == "__main__":
    step(quantize_gguf)
