"""Compare an IRPA archive with the GGUF file it was made from, and open it.  Runs in envs/iree.

The GGUF side is read by the gguf package, not by our own code, and has a record of its own, on which this
one rests.  Every byte of the archive is compared; iree.runtime and sharktank load it.
"""

from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.options import RecordFile, step
from ingot.base.refused import Refused
from ingot.formats.iree import consumers
from ingot.formats.iree import irpa as irpa_format
from ingot.parity import verification
from ingot.parity.values import forget

CHUNK = 1 << 24  # bytes compared at a time
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as torch names them


def verify_irpa(
    gguf: Annotated[Path, "what it was made of"],
    gguf_record: Annotated[Path, "by verify_gguf.py, of that"],
    irpa: Annotated[Path, "the archive to check"],
    record: RecordFile,
) -> None:
    from gguf import GGUFReader

    verification.rests_on(gguf, gguf_record)
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
    listed = irpa_format.listed(irpa)
    if {name: one.get("raw_tensors") for name, one in listed.items()} != {
        name: {"": raw} for name, raw in named.items()
    }:
        raise Refused(f"{irpa}: {irpa_format.TENSORS} are not its tensors")
    wanted = {"schema": "GGUF", "SHARK_DATASET_VERSION": 1}
    wanted |= {name: field.contents() for name, field in source.fields.items()}
    verification.same_properties(irpa, properties, wanted)
    described = [(entry.name, entry.dtype, entry.shape) for entry in entries]
    consumers.exact(irpa, irpa_format.layout(properties, described))
    opened(irpa, entries, named)
    verification.write(
        record,
        irpa,
        sha256,
        "its GGUF file, byte by byte, read by gguf-py; loaded by iree.runtime and sharktank",
        {"tensors": len(entries), "tensors_equal": len(entries), "properties": len(source.fields)},
        rests_on=[verification.digest(gguf)],
        versions=verification.versions("gguf", "numpy", "iree-base-runtime", "sharktank"),
    )


def opened(irpa: Path, entries: list[irpa_format.Entry], named: dict[str, str]) -> None:
    """Load it as its users do; refused where they find other tensors than the file's."""
    with stderr_to_log(f"{irpa}: loading by iree.runtime and sharktank"):
        consumers.in_iree(irpa, entries)
        found = consumers.in_sharktank(irpa)
    by_name = {entry.name: entry for entry in entries}
    for name, raw in named.items():
        entry = by_name[raw]
        wanted = ("PrimitiveTensor", DTYPES[entry.dtype], entry.shape)
        if found.get(name, ())[1:] != wanted[1:] or "PrimitiveTensor" not in found[name][0]:
            raise Refused(
                f"{irpa}: tensor {name} is {found.get(name)} to sharktank, expected {wanted}"
            )


if __name__ == "__main__":
    step(verify_irpa)
