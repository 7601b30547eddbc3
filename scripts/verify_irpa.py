"""Compare an IRPA archive with the GGUF file it was made from.  Runs in envs/convert.

The GGUF side is read by the gguf package, not by our own code.
"""

import argparse
import json
from pathlib import Path

from ingot.entry import run
from ingot.iree import irpa as irpa_format
from ingot.refused import Refused
from ingot.verify import verification
from ingot.verify.values import forget

CHUNK = 1 << 24  # bytes compared at a time


def verify_irpa(gguf: Path, irpa: Path, record: Path) -> None:
    from gguf import GGUFReader

    sha256 = verification.digest(irpa)
    properties, entries = irpa_format.read(irpa)
    source = GGUFReader(gguf)
    tensors = {tensor.name: tensor for tensor in source.tensors}
    if sorted(tensors) != sorted(entry.name for entry in entries):
        raise Refused(f"{irpa}: {len(entries)} tensors, expected the {len(tensors)} of {gguf}")
    with irpa.open("rb") as file:
        for entry in entries:
            tensor = tensors[entry.name]
            file.seek(entry.offset)
            same, place = entry.nbytes == tensor.n_bytes, tensor.data_offset
            for at in range(0, entry.nbytes if same else 0, CHUNK):
                size = min(CHUNK, entry.nbytes - at)
                same &= file.read(size) == source.data[place + at : place + at + size].tobytes()
                forget(source)
            shape = tuple(int(n) for n in reversed(tensor.shape))
            if not same or (entry.shape, entry.dtype) != (shape, tensor.tensor_type.name):
                raise Refused(f"{irpa}: tensor {entry.name} differs from {gguf}")
    named = {entry.name: entry.name for entry in entries}
    if irpa_format.HEAD not in named:  # tied embeddings
        named[irpa_format.HEAD] = irpa_format.EMBEDDING
    listed = json.loads(irpa_format.texts(irpa)[irpa_format.TENSORS])
    if {name: one.get("raw_tensors") for name, one in listed.items()} != {
        name: {"": raw} for name, raw in named.items()
    }:
        raise Refused(f"{irpa}: {irpa_format.TENSORS} are not its tensors")
    wanted = {"schema": "GGUF", "SHARK_DATASET_VERSION": 1}
    wanted |= {name: field.contents() for name, field in source.fields.items()}
    verification.same_properties(irpa, properties, wanted)
    verification.write(
        record,
        irpa,
        sha256,
        "its GGUF file, byte by byte, read by gguf-py",
        {"tensors": len(entries), "tensors_equal": len(entries), "properties": len(source.fields)},
        versions=verification.versions("gguf", "numpy"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="what it was made of")
    parser.add_argument("--irpa", type=Path, required=True, help="the archive to check")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_irpa(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
