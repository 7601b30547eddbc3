"""Compare a set of GGUF files with the whole one, and run both.  Runs in envs/llamacpp.

Every tensor's bytes must be those of the whole file, once; libllama loads the set by its first file, and
its logits of the reference's prompts must be those of the whole file, bit for bit.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.options import RecordFile, ReferenceFile, step
from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_file
from ingot.formats.gguf import libllama
from ingot.formats.gguf.file import TensorInfo
from ingot.formats.gguf.libllama import Llama
from ingot.parity import reference as reference_of
from ingot.parity import verification

BLOCK = 1 << 24  # bytes compared at a time
SPLIT = ("split.no", "split.count", "split.tensors.count")
COUNTED = ("GGUF.tensor_count", "GGUF.kv_count")
PROMPTS = 3  # that both run: they hold the same bytes


def verify_split(
    gguf: Annotated[Path, "the whole file"],
    split: Annotated[Path, "the set to verify"],
    reference: ReferenceFile,
    record: RecordFile,
) -> None:
    sha256 = verification.digest(split)
    wanted, tensors = gguf_file.read(gguf)
    parts = sorted(split.glob("*.gguf"))
    left = {info.name: info for info in tensors}
    for number, part in enumerate(parts):
        pairs, found = gguf_file.read(part)
        says = [pairs.pop(key, None) for key in SPLIT]
        if says != [number, len(parts), len(tensors)]:
            raise Refused(
                f"{part}: {', '.join(SPLIT)} are {says}, expected {[number, len(parts), len(tensors)]}"
            )
        if without_counts(pairs) != (
            without_counts(wanted) if number == 0 else {"GGUF.version": 3}
        ):
            raise Refused(f"{part}: its metadata are not those of {gguf}")
        for info in found:
            other = left.pop(info.name, None)
            if other is None or not same(part, info, gguf, other):
                raise Refused(f"{part}: tensor {info.name} is not that of {gguf}")
    if left:
        raise Refused(f"{split}: tensor {next(iter(left))} is in no file")
    answers = reference_of.read(reference)[:PROMPTS]
    longest = max(len(answer.prompt) for answer in answers)
    with Llama(gguf, longest) as whole, Llama(parts[0], longest) as cut:
        for answer in answers:
            if not np.array_equal(whole.logits(answer.prompt), cut.logits(answer.prompt)):
                raise Refused(f"{split}: libllama computes other logits than of {gguf}")
    verification.write(
        record,
        split,
        sha256,
        "the whole file, tensor by tensor, and its logits, by libllama",
        {
            "files": len(parts),
            "tensors": len(tensors),
            "largest_file_bytes": max(part.stat().st_size for part in parts),
            "prompts_equal": len(answers),
        },
        whole=verification.digest(gguf),
        versions={"llama.cpp": libllama.version()},
    )


def without_counts(pairs: dict) -> dict:
    return {key: value for key, value in pairs.items() if key not in COUNTED}


def same(path: Path, info: TensorInfo, other_path: Path, other: TensorInfo) -> bool:
    if (info.type, info.shape) != (other.type, other.shape):
        return False
    with path.open("rb") as one, other_path.open("rb") as two:
        one.seek(info.offset)
        two.seek(other.offset)
        left = info.nbytes
        while left > 0:
            size = min(BLOCK, left)
            if one.read(size) != two.read(size):
                return False
            left -= size
    return True


if __name__ == "__main__":
    step(verify_split)
