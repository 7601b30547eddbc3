"""Run a GGUF file that llama.cpp's converter wrote, beside transformers.  Runs in envs/llamacpp.

The converter's exit status says nothing: files of it that load, and compute something else, have been seen.
So the float32 file must have transformers' tokens and dialogues, its best tokens, and its distributions but
for rounding; every other type rests on the record of that file, and has the limits of its type.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.options import (
    Limits,
    ReadingFile,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    step,
)
from ingot.base.refused import Refused
from ingot.formats.gguf import libllama, quantisations
from ingot.formats.gguf.metadata import FILE_TYPE
from ingot.parity import limits, verification
from ingot.parity import reading as reading_of
from ingot.parity import texts as texts_of
from ingot.parity.in_libllama import COMPUTED, Expected, as_tokenized, opened, ran

# ggml's own tables of activations have 16 bits: right files of Gemma and gpt-oss are off by 8e-3 of a logit
TIES = "float16"
SAME_TOP = 0.99  # of a right float32 file; wrong ones had at most 0.92
TYPES = {**FILE_TYPE, **{name: row.ftype for name, row in quantisations.ROWS.items()}}
READ = {  # of its header, behind the architecture's name -> of transformers' reading: no run shows these
    "embedding_length": "hidden",
    "attention.layer_norm_rms_epsilon": "epsilon",
    "context_length": "longest",
    "attention.sliding_window": "window",
}
MUST = ("attention.sliding_window",)  # be there, where transformers has one: else it was dropped
HELD = {  # of its header, what is read below
    "general.architecture": str,
    "tokenizer.ggml.tokens": list,
    "tokenizer.ggml.token_type": list,
}
ADVICE = "llama.cpp computes another model than transformers: see docs/breadth.md"


def verify_converted(
    gguf: Annotated[Path, "the file to check"],
    dtype: Annotated[str, "of the matrices", sorted(TYPES)],
    reading: ReadingFile,
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    floats: Annotated[list[Path], "the float32 file and its record, of every other type"] = (),
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(gguf)
    if floats:
        verification.rests_on(*floats)
    elif dtype != "f32":
        raise Refused(f"--floats: missing, expected the float32 file and its record, of {dtype}")
    known, model = texts_of.read(texts), reading_of.outline(reading)
    reader = opened(gguf)
    said = {name: field.contents() for name, field in reader.fields.items()}
    for key, kind in HELD.items():
        if not isinstance(said.get(key), kind):
            raise Refused(f"{gguf}: {key} is missing, or of another type")
    if len(said["tokenizer.ggml.tokens"]) != len(said["tokenizer.ggml.token_type"]):
        raise Refused(f"{gguf}: tokenizer.ggml.token_type has another length than tokens")
    if said.get("general.file_type") != TYPES[dtype]:
        found = said.get("general.file_type")
        raise Refused(f"{gguf}: general.file_type is {found}, expected {TYPES[dtype]} of {dtype}")
    as_read(gguf, said, model)
    as_tokenized(gguf, said, known.vocabulary)
    top = {"same_top": SAME_TOP} if dtype == "f32" else {}
    expected = Expected(
        reference,
        known,
        scores,
        {**limits.numbers(dtype, {}), **top, **limits.pairs(limit or [])},
        TIES if dtype in COMPUTED else None,
        None,
        *([ADVICE] if dtype == "f32" else []),
    )
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    checks = {
        "architecture": said["general.architecture"],
        "tensors": kinds.total(),
        "tensor_types": dict(sorted(kinds.items())),
        **ran(gguf, said.get("tokenizer.ggml.pre", "default"), model["context"], expected),
    }
    verification.write(
        record,
        gguf,
        sha256,
        "transformers in float32, by libllama: tokens, dialogues, greedy answers, distributions",
        checks,
        way="upstream: llama.cpp's convert_hf_to_gguf.py",
        versions={**verification.versions("gguf", "numpy"), "llama.cpp": libllama.version()},
    )


def as_read(gguf: Path, said: dict, model: reading_of.Reading) -> None:
    """Refuse a header whose numbers are not transformers': a run does not show a small epsilon."""
    architecture = said["general.architecture"]
    for word, name in READ.items():
        found, expected = said.get(f"{architecture}.{word}"), model.get(name)
        if expected is None or (found is None and word not in MUST):
            continue
        number = type(found) in (int, float)
        if not number or np.float32(found) != np.float32(expected):
            raise Refused(
                f"{gguf}: {architecture}.{word} is {found}, expected {expected} by transformers"
            )


if __name__ == "__main__":
    step(verify_converted)
