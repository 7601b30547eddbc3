"""The GGUF file format: header, key/value pairs, tensor directory.

Specification: ggml-org/ggml docs/gguf.md, version 3, little-endian.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.gguf.kv import KV
from ingot.model.tensors.dtypes import TYPES, TensorType
from ingot.model.tensors.layout import FileLayout

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32

# Value types: name -> (number, struct code)
SCALARS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
STRING, ARRAY = 8, 9
PAIRS = 24  # the byte at which they begin
MOST_DIMS = 4  # ggml's own limit
MOST_ALIGNED = 1 << 20  # bytes
BY_NUMBER = {kind.number: kind for kind in TYPES.values()}
SCALAR_OF = {number: code for number, code in SCALARS.values()}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a GGUF file: row-major `shape` (GGUF lists it reversed), bytes at `offset`."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int  # from the start of the file

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(self.shape)

    @property
    def row_nbytes(self) -> int:
        """Of a row, or of a value of a vector."""
        return self.nbytes // prod(self.shape[:-1] or self.shape)


def layout(
    kvs: list[KV], tensors: list[tuple[str, TensorType, tuple[int, ...]]]
) -> FileLayout[list[TensorInfo]]:
    """A file of these pairs and these tensors (name, type, shape), in their order."""
    return layout_of(Pairs(len(kvs), encoded(kvs)), tensors)


@dataclass(frozen=True)
class Pairs:
    """Key/value pairs as they lie in a file."""

    count: int
    data: bytes

    def __add__(self, kvs: list[KV]) -> "Pairs":
        return Pairs(self.count + len(kvs), self.data + encoded(kvs))


def encoded(kvs: list[KV]) -> bytes:
    return b"".join(_string(kv.key) + _value(kv.kind, kv.value) for kv in kvs)


def layout_of(
    pairs: Pairs, tensors: list[tuple[str, TensorType, tuple[int, ...]]]
) -> FileLayout[list[TensorInfo]]:
    """The same of pairs that are encoded already."""
    out = [MAGIC + struct.pack("<IQQ", VERSION, len(tensors), pairs.count), pairs.data]
    place, places = 0, []
    for name, kind, shape in tensors:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out.append(_string(name) + dims + struct.pack("<IQ", kind.number, place))
        places.append(place)
        place = align(place + kind.nbytes(shape))
    text = b"".join(out)
    base = align(len(text))
    infos = [
        TensorInfo(name, kind, tuple(shape), base + at)
        for (name, kind, shape), at in zip(tensors, places, strict=True)
    ]
    return FileLayout(text.ljust(base, b"\0"), infos, base + place)


def align(offset: int, to: int = ALIGNMENT) -> int:
    return -(-offset // to) * to


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(kind: str, value: Any) -> bytes:
    if kind == "str":
        return struct.pack("<I", STRING) + _string(value)
    if kind == "[str]":
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    if kind.startswith("["):
        number, code = SCALARS[kind[1:-1]]
        return struct.pack(f"<IIQ{len(value)}{code}", ARRAY, number, len(value), *value)
    number, code = SCALARS[kind]
    return struct.pack(f"<I{code}", number, value)


def read(path: Path) -> tuple[dict[str, Any], list[TensorInfo]]:
    """Key/value pairs and tensor directory of the GGUF file at `path`, in file order.

    Refused unless each name comes once and the tensors lie in the file one behind the other, as
    ggml's own reader wants them.  `general.alignment` is honoured.
    """
    kvs, infos, _ = _checked(path)
    return kvs, infos


def read_pairs(path: Path) -> tuple[Pairs, list[TensorInfo]]:
    """The same, the pairs as they are encoded."""
    kvs, infos, end = _checked(path)
    with path.open("rb") as file:
        file.seek(PAIRS)
        return Pairs(kvs["GGUF.kv_count"], file.read(end - PAIRS)), infos


def _checked(path: Path) -> tuple[dict[str, Any], list[TensorInfo], int]:
    with path.open("rb") as file:
        try:
            return _read(path, file, path.stat().st_size)
        except (struct.error, UnicodeDecodeError, KeyError):
            raise Refused(f"{path}: header is damaged or ends early, expected GGUF") from None


def _read(path: Path, file, size: int) -> tuple[dict[str, Any], list[TensorInfo], int]:
    """The pairs, the tensors, and the byte after the last pair."""
    at = 0

    def data(length: int) -> bytes:
        nonlocal at
        at += length
        if at > size:  # before memory is taken for it
            raise struct.error
        return file.read(length)

    def take(code: str):
        code = f"<{code}"
        return struct.unpack(code, data(struct.calcsize(code)))

    def string() -> str:
        return data(take("Q")[0]).decode()

    def value(number: int):
        if number == STRING:
            return string()
        if number == ARRAY:
            kind, count = take("IQ")
            if count > size:
                raise struct.error
            if kind == STRING:
                return [string() for _ in range(count)]
            return list(take(f"{count}{SCALAR_OF[kind]}"))
        return take(SCALAR_OF[number])[0]

    magic = file.read(4)
    at = 4
    if magic != MAGIC:
        raise Refused(f"{path}: starts with {magic!r}, expected {MAGIC!r}; it is not a GGUF file")
    version, n_tensors, n_kvs = take("IQQ")
    if version != VERSION:
        raise Refused(f"{path}: GGUF version {version}, expected {VERSION}")
    kvs = {"GGUF.version": version, "GGUF.tensor_count": n_tensors, "GGUF.kv_count": n_kvs}
    for _ in range(n_kvs):
        key = string()
        if key in kvs:
            raise Refused(f"{path}: key {key} comes twice, expected once")
        kvs[key] = value(take("I")[0])
    alignment = kvs.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNED or alignment % 8:
        raise Refused(f"{path}: general.alignment is {alignment}, expected a multiple of 8")
    end = at
    found = [_tensor(path, string, take) for _ in range(n_tensors)]
    return kvs, _places(path, found, align(at, alignment), size, alignment), end


def _tensor(path: Path, string, take) -> tuple[str, TensorType, tuple[int, ...], int]:
    name = string()
    (n_dims,) = take("I")
    if n_dims > MOST_DIMS:
        raise struct.error
    shape = tuple(reversed(take(f"{n_dims}Q")))
    number, place = take("IQ")
    if number not in BY_NUMBER:
        known = ", ".join(TYPES)
        raise Refused(f"{path}: tensor {name} has ggml type {number}, expected one of {known}")
    kind = BY_NUMBER[number]
    if kind.block > 1 and (not shape or shape[-1] % kind.block):
        raise Refused(
            f"{path}: tensor {name} has shape {list(shape)}, expected rows of whole blocks of "
            f"{kind.block} for {kind.name}"
        )
    return name, kind, shape, place


def _places(path: Path, found: list, base: int, size: int, alignment: int) -> list[TensorInfo]:
    """The tensors, each where the one before ends: none twice, none outside, none over another."""
    infos: dict[str, TensorInfo] = {}
    expected = 0
    for name, kind, shape, place in found:
        info = TensorInfo(name, kind, shape, base + place)
        if name in infos:
            raise Refused(f"{path}: tensor {name} comes twice, expected once")
        if place != expected:
            raise Refused(
                f"{path}: tensor {name} begins at byte {place} of the data, expected {expected}"
            )
        if info.offset + info.nbytes > size:
            raise Refused(
                f"{path}: tensor {name} ends at byte {info.offset + info.nbytes}, but the file has "
                f"{size}; it was cut short"
            )
        infos[name] = info
        expected = align(place + info.nbytes, alignment)
    return list(infos.values())
