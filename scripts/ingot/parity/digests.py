"""What a checkpoint's tensors are in a dtype, by SHA-256: what files are compared with that hold them so.

Made once of a checkpoint, by digest_weights.py, for ranks of any number and layout: who goes by it reads
no checkpoint.  Verification only: written without the converters' code.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.fields import Number, Whole, read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.dtypes import FLOATS
from ingot.parity.values import (  # fmt: skip
    CASTS,
    INFINITY,
    Comparison,
    as_float32,
    chunks,
    parts,
    stored,
    values,
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FEW = 1 << 22  # values: formats keep vectors and routers in float32, whatever the dtype is
KIND = {"sha256": str, "rounded": Whole(low=0), "difference": Number()}
FORM = {"tensors": {str: {"shape": [Whole()], "kinds": {str: (KIND, None)}}}}


@dataclass(frozen=True)
class Digested:
    """A tensor of the checkpoint: by kind (F16, BF16, F32) the `sha256` of its values, row by row, how many
    are `rounded`, and the largest `difference` of one; None of a kind that cannot hold them."""

    name: str
    shape: tuple[int, ...]
    kinds: dict[str, dict[str, Any] | None]


def read(path: Path) -> dict[str, Digested]:
    """The checkpoint's tensors by name, as digest_weights.py wrote them."""
    found = read_json(path, FORM)["tensors"]
    return {name: Digested(name, tuple(one["shape"]), one["kinds"]) for name, one in found.items()}


def kinds_of(tensor: Tensor, dtype: str, twin: bool) -> list[str]:
    """In which a tensor is written: in `dtype`, and small ones in float32; so is an embedding or a head
    that may be its `twin`, since only that tells whether they are one."""
    exact = twin or int(np.prod(tensor.shape)) <= FEW
    return list(dict.fromkeys([dtype.upper(), *["F32"] * exact]))


def cast(wanted: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 to the nearest values of F16, BF16 or F32, halves to the even one: the bits that a file has.

    And how far each value is from what it was: not finite where the kind cannot hold it, or it is none.
    """
    bits = CASTS[kind](wanted)
    with np.errstate(invalid="ignore"):
        return bits, np.abs(as_float32(bits, kind) - wanted)


@functools.cache
def cast_of_each(dtype: str, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of every number of 16 bits, as a dtype has them; and which of them are not held exactly."""
    every = np.arange(1 << 16, dtype=np.uint16).view(FLOATS[dtype].numpy)
    bits, away = cast(as_float32(every, dtype), kind)
    return bits, away, away != 0


def casts(tensor: Tensor, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each chunk of rows: the bits that a file of the kind has, and how far values are from what they
    were, those that are held exactly left out."""
    few = type(tensor) is Tensor and tensor.dtype in INFINITY
    for first, last in parts(tensor):
        if few:  # looked up: a quarter of the time
            numbers = stored(tensor, first, last).view(np.uint16).astype(np.intp)
            bits, away, odd = cast_of_each(tensor.dtype, kind)
            yield bits.take(numbers), away[numbers[odd.take(numbers)]]
        else:
            bits, away = cast(values(tensor, first, last), kind)
            yield bits, away[away != 0]


def digested(tensor: Tensor, kinds: list[str]) -> dict[str, Any]:
    """Its shape, and what it is in each of the kinds: as Digested has them."""
    return {"shape": [*tensor.shape], "kinds": {kind: digested_in(tensor, kind) for kind in kinds}}


def digested_in(tensor: Tensor, kind: str) -> dict[str, Any] | None:
    """None where the kind cannot hold a value, or one is no number: no file of it is right."""
    hashed, rounded, most = hashlib.sha256(), 0, 0.0
    for bits, away in casts(tensor, kind):
        if not np.isfinite(away).all():
            return None
        rounded += len(away)
        most = max(most, float(away.max(initial=0)))
        hashed.update(np.ascontiguousarray(bits))
    return {"sha256": hashed.hexdigest(), "rounded": rounded, "difference": most}


def compare(
    comparison: Comparison,
    name: str,
    kind: str,
    source: Digested,
    found: Callable[[int, int], np.ndarray],
) -> None:
    """Compare all that found(first row, last row) gives, as `kind` is stored, with what the source is."""
    if kind not in source.kinds:
        raise Refused(
            f"{comparison.path}: tensor {name} is {kind}, expected {' or '.join(source.kinds) or 'none'}"
        )
    if (wanted := source.kinds[kind]) is None:
        raise Refused(
            f"{comparison.path}: tensor {name}: its source holds what {kind} cannot; ask for another dtype"
        )
    hashed = hashlib.sha256()
    for first, last in chunks(source.shape):
        hashed.update(np.ascontiguousarray(found(first, last)))
    if hashed.hexdigest() != wanted["sha256"]:
        raise Refused(f"{comparison.path}: tensor {name} is not the checkpoint's in {kind}")
    comparison.differs_by(wanted["difference"])
    comparison.add(source.shape, wanted["rounded"])


def hold_tied(path: Path, sources: dict[str, Digested], tied: bool) -> None:
    """Refuse a file made without the head of a source that stores another one than its embedding."""
    one, head = (sources.get(name) for name in (EMBEDDING, HEAD))
    if tied and one and head and one.kinds.get("F32") != head.kinds.get("F32"):
        raise Refused(f"{path}: its source has a head of its own, expected that of the embedding")
