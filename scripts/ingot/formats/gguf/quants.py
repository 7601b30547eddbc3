"""Importance matrices, and what the header of a quantised file says of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_file
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.quantisations import ROWS

SUMS, COUNTS = ".in_sum2", ".counts"
NAME_LIMIT = 127  # bytes of a string that llama-quantize writes into the header


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix: of each tensor the mean square of every column of its input, float32."""

    name: str  # of its file
    dataset: str
    chunks: int
    columns: dict[str, Any]  # arrays

    def pairs(self) -> list[KV]:
        """What a header says of it, as llama-quantize does."""
        return [
            KV("quantize.imatrix.file", "str", self.name[:NAME_LIMIT]),
            KV("quantize.imatrix.dataset", "str", self.dataset[:NAME_LIMIT]),
            KV("quantize.imatrix.entries_count", "u32", len(self.columns)),
            KV("quantize.imatrix.chunks_count", "u32", self.chunks),
        ]


def read_imatrix(path: Path) -> Imatrix:
    """An importance matrix as llama.cpp keeps it, a GGUF file of sums and counts."""
    import numpy as np

    kvs, tensors = gguf_file.read(path)
    if kvs.get("general.type") != "imatrix":
        raise Refused(f"{path}: no importance matrix, expected one")
    found = {
        info.name: np.fromfile(path, "<f4", info.nbytes // 4, offset=info.offset)
        for info in tensors
    }
    columns = {}
    for name, sums in found.items():
        if name.endswith(SUMS):
            stem = name.removesuffix(SUMS)
            count = found.get(stem + COUNTS)
            if count is None or not count[0] > 0:
                raise Refused(f"{path}: {stem} was met by no token, expected some")
            columns[stem] = (sums / found[stem + COUNTS][0]).astype(np.float32)
    (dataset,) = kvs["imatrix.datasets"]
    return Imatrix(path.name, dataset, kvs["imatrix.chunk_count"], columns)


def header(kvs: list[KV], quant: str, imatrix: Imatrix | None) -> list[KV]:
    """The pairs of a float file, as libllama writes them for `quant`: two of them last."""
    moved = ("general.quantization_version", "general.file_type")
    return [
        *(kv for kv in kvs if kv.key not in moved),
        KV("general.quantization_version", "u32", 2),
        KV("general.file_type", "u32", ROWS[quant].ftype),
        *(imatrix.pairs() if imatrix else []),
    ]
