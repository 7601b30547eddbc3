"""Compare an adapter in GGUF with PEFT's, and apply it to its base's file.  Runs in envs/llamacpp.

Its tensors, read by the gguf package, times alpha / r as libllama has them, must be what PEFT's config and
matrices add to each weight; and libllama, which applies it to the base's GGUF file, must have the tokens
and the distributions that transformers has of the model that PEFT merged.
"""

import json
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.options import Limits, RecordFile, ReferenceFile, ScoresFile, TextsFile, step
from ingot.base.refused import Refused
from ingot.formats.gguf import header, libllama, metadata
from ingot.formats.gguf import lora as lora_of
from ingot.formats.gguf.libllama import Llama
from ingot.formats.gguf.metadata import FILE_TYPE
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.config import ModelConfig, read_config
from ingot.model.specs import specs_of
from ingot.parity import adapted, divergence, limits, verification
from ingot.parity import reference as reference_of
from ingot.parity import texts as texts_of
from ingot.parity.in_libllama import COMPUTED, Expected, continued, opened
from ingot.parity.values import row_order

NEAR = 2.0**-22  # of a value: float32's own rounding, twice


def verify_lora(
    checkpoint: Checkpoint,
    lora: Annotated[Path, "the file to check"],
    gguf: Annotated[Path, "its base's"],
    dtype: Annotated[str, "of that", sorted(FILE_TYPE)],
    name: Annotated[str, "general.name"],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    license: Annotated[str | None, "general.license"] = None,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(lora)
    config = read_config(checkpoint["config.json"], can=metadata.CAN)
    alpha = json.loads(checkpoint[ADAPTER].read_bytes()).get("lora_alpha", 8)
    reader = opened(lora)
    checks = {
        "metadata_pairs": header.check(
            lora, reader.fields, lora_of.pairs(config, name, license, alpha)
        ),
        **compared(lora, reader, checkpoint, config),
    }
    known, computed = texts_of.read(texts), COMPUTED.get(dtype)
    tolerance = reference_of.TOLERANCE[computed] if computed else None
    held = limits.numbers(dtype, limits.pairs(limit or []))
    expected = Expected(reference, known, scores, held, computed, tolerance)
    answers = reference_of.read(reference)
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    room = min(config.context, max(longest, *map(len, known.corpus)))
    with Llama(gguf, room, lora=lora) as model:
        numbers = divergence.measure(lora, known, scores, model.logits)
        checks["numbers"] = divergence.held(lora, numbers, held, expected.advice)
        if computed:
            checks |= continued(lora, model.logits, answers, expected)
    verification.write(
        record,
        lora,
        sha256,
        "the adapter, value by value; transformers with what PEFT merges, by libllama on the base's file",
        checks,
        base=verification.digest(gguf),
        versions={**verification.versions("gguf", "numpy"), "llama.cpp": libllama.version()},
    )


def compared(lora: Path, reader, checkpoint: Checkpoint, config: ModelConfig) -> dict:
    """What a record says of its matrices: of each pair the product's factors, and nothing else."""
    names = {spec.source: spec for spec in specs_of(config, "f32") if spec.source}
    found = {tensor.name: tensor for tensor in reader.tensors}
    alpha, values = float(reader.fields[f"{lora_of.PREFIX}.alpha"].contents()), 0
    for source, change in adapted.changes(checkpoint).items():
        spec = names[source]
        pair = [found.pop(f"{spec.name}.lora_{letter}", None) for letter in "ab"]
        if None in pair:
            raise Refused(
                f"{lora}: {spec.name} has no pair, expected what {checkpoint[ADAPTER]} adds"
            )
        a, b = (np.asarray(one.data, np.float64) for one in pair)
        b = b[row_order(spec.heads, config.head_dim, b.shape)]
        rows, columns = change.matrices()
        wanted = change.scale * rows
        got = alpha / len(a) * b
        same = a.shape == columns.shape and got.shape == wanted.shape
        if not same or (a != columns).any() or (abs(got - wanted) > NEAR * abs(wanted)).any():
            raise Refused(f"{lora}: {spec.name} is not what {checkpoint[ADAPTER]} adds")
        values += a.size + b.size
    if found:
        raise Refused(f"{lora}: {len(found)} tensors too many, first {min(found)}")
    return {"tensors": len(reader.tensors), "values": values}


if __name__ == "__main__":
    step(verify_lora)
