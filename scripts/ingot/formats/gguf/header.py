"""The metadata of a checkpoint's GGUF file: all its pairs, and a file's own checked against them."""

import struct
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.vocabulary import vocabulary
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import ModelConfig

SHOWN = 60  # characters of a value that a message shows
TYPES = {
    "str": ["STRING"], "bool": ["BOOL"], "u16": ["UINT16"], "u32": ["UINT32"],
    "i32": ["INT32"], "f32": ["FLOAT32"],
    "[str]": ["ARRAY", "STRING"], "[i32]": ["ARRAY", "INT32"], "[f32]": ["ARRAY", "FLOAT32"],
}  # fmt: skip  # of KV, as gguf-py names them


def pairs(
    checkpoint: Checkpoint,
    config: ModelConfig,
    dtype: str,
    name: str,
    pre_tokenizer: str,
    license: str | None,
) -> list[KV]:
    """In the order that llama.cpp's converter writes; `dtype` is that of the matrices."""
    generation = checkpoint.optional_json("generation_config.json", metadata.GENERATION)
    return [
        *metadata.general(config, dtype, name, license, generation),
        *metadata.hyperparameters(config, dtype),
        *vocabulary(checkpoint, config, pre_tokenizer),
    ]


def check(path: Path, fields: dict[str, Any], wanted: list[KV]) -> int:
    """Refuse a file whose metadata, as gguf-py reads it, are not exactly `wanted`; how many there are."""
    found = {key: field for key, field in fields.items() if not key.startswith("GGUF.")}
    for key, kind, value in wanted:
        if key not in found:
            raise Refused(f"{path}: {key} is missing, expected {shown(value)}")
        types, has = [one.name for one in found[key].types], found[key].contents()
        known = TYPES[kind] if value != [] else TYPES[kind][:1]  # an empty list says no more
        if types != known or has != stored(kind, value):
            where = first_difference(has, stored(kind, value))
            raise Refused(f"{path}: {key}{where}")
    if extra := sorted(set(found) - {kv.key for kv in wanted}):
        raise Refused(f"{path}: {extra[0]} is there, expected no such key")
    return len(wanted)


def stored(kind: str, value: Any) -> Any:
    """A value as it comes back from the file."""
    if kind == "f32":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return [stored("f32", one) for one in value] if kind == "[f32]" else value


def first_difference(has: Any, wanted: Any) -> str:
    if not isinstance(has, list) or not isinstance(wanted, list):
        return f" is {shown(has)}, expected {shown(wanted)}"
    if len(has) != len(wanted):
        return f" has {len(has)} entries, expected {len(wanted)}"
    both = enumerate(zip(has, wanted, strict=True))
    at = next((n for n, (one, other) in both if one != other), None)
    if at is None:
        return " is of another type"
    return f"[{at}] is {shown(has[at])}, expected {shown(wanted[at])}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
