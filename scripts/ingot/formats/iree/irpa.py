"""The IRPA parameter archive: header, entry table, metadata, storage.

Format: IREE's runtime/src/iree/schemas/parameter_archive.h, version 0.0, little-endian.  The
metadata and the JSON blobs are those of sharktank's Dataset.save, so that the file is the same.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.model.tensors.dtypes import FLOATS
from ingot.model.tensors.layout import FileLayout

ALIGNMENT = 64  # of each entry in the storage segment
PAGE = 4096  # the file is padded to it
HEADER = struct.Struct("<4sHHQQQ7Q")  # magic, version, size, next header, flags, seven of segments
ENTRY = struct.Struct("<QIQQQQQQQQ")  # size, type, flags, name, metadata, alignment, storage
DATA_ENTRY = 2
MOST_DIMS = 8
TABLE = 96  # where the entry table begins: the header rounded up to 16
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
DATASET, RANKS, TENSORS = (
    f"__SHARK_{word}__" for word in ("DATASET", "SHARD_RANKS", "INFERENCE_TENSORS")
)


@dataclass(frozen=True)
class Entry:
    """A tensor: `dtype` is a GGUF type's name, `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def layout(
    properties: dict[str, Any], tensors: list[tuple[str, str, tuple[int, ...]]]
) -> FileLayout[list[Entry]]:
    """The archive of the tensors (name, dtype, shape), and of the properties as its text.

    A model whose embeddings are tied has no output layer of its own: its name is one more of the
    embedding's.  sharktank's dump_gguf leaves it out, and then cannot export the model.
    """
    raw = {"type_name": "PrimitiveTensor"}
    names = {name: {**raw, "raw_tensors": {"": name}} for name, _, _ in tensors}
    if EMBEDDING in names and HEAD not in names:
        names[HEAD] = names[EMBEDDING]
    described = {**properties, "SHARK_DATASET_VERSION": 1}
    return archive(tensors, {DATASET: _json(described), TENSORS: _json(names)})


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode()


def archive(
    tensors: list[tuple[str, str, tuple[int, ...]]], texts: dict[str, bytes]
) -> FileLayout[list[Entry]]:
    """As `layout`, of any tensors (name, dtype, shape) and, after them, any texts by name."""
    parts: list[tuple[str, bytes, int]] = []
    for name, dtype, shape in tensors:
        kind = FLOATS[dtype]
        meta = _metadata(kind.torch, kind.itemsize, shape)
        parts.append((name, meta, prod(shape) * kind.itemsize))
    parts += [(name, b"", len(text)) for name, text in texts.items()]

    table, strings, place, places = [], [], 0, []
    text_at = 0
    for name, meta, nbytes in parts:
        key = name.encode()
        place = align(place, ALIGNMENT)
        meta_at = text_at + len(key) if meta else 0
        table.append(
            ENTRY.pack(
                ENTRY.size, DATA_ENTRY, 0, text_at, len(key), meta_at, len(meta),
                ALIGNMENT, place, nbytes,
            ).ljust(align(ENTRY.size, 16), b"\0")
        )  # fmt: skip
        strings += [key, meta]
        text_at += len(key) + len(meta)
        places.append(place)
        place += nbytes
    table_bytes = b"".join(table)[: (len(parts) - 1) * align(ENTRY.size, 16) + ENTRY.size]
    metadata = b"".join(strings)
    metadata_at = TABLE + len(table_bytes)
    storage = align(metadata_at + len(metadata), ALIGNMENT)
    head = HEADER.pack(
        b"IRPA", 0, 0, HEADER.size, 0, 0,
        len(parts), TABLE, len(table_bytes), metadata_at, len(metadata), storage, place,
    )  # fmt: skip
    front = (head.ljust(TABLE, b"\0") + table_bytes + metadata).ljust(storage, b"\0")
    entries = [
        Entry(name, dtype, tuple(shape), storage + at, nbytes)
        for (name, dtype, shape), at, (_, _, nbytes) in zip(tensors, places, parts, strict=False)
    ]
    blobs = dict(zip((storage + at for at in places[len(tensors) :]), texts.values(), strict=True))
    return FileLayout(front, entries, align(storage + place, PAGE), blobs)


def tree_order(names: Iterable[str]) -> list[str]:
    """The names as sharktank orders them: a tree split at dots, walked in order of appearance.

    So a block whose tensors lie apart, cut by a shard's border, is gathered at its first one.
    """
    tree: dict = {}
    for name in names:
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = name
    return list(_leaves(tree))


def _leaves(node: dict) -> Iterator[str]:
    for child in node.values():
        if isinstance(child, dict):
            yield from _leaves(child)
        else:
            yield child


def _metadata(word: str, itemsize: int, shape: tuple[int, ...]) -> bytes:
    described = {
        "class_name": "dtype",
        "is_complex": False,
        "is_floating_point": True,
        "is_signed": True,
        "itemsize": itemsize,
    }
    tensor = {"type": "Tensor", "dtype": word, "shape": list(shape), "dtype_desc": described}
    return b"PYTORCH:" + json.dumps(tensor).encode()


def align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Properties and tensors of the archive at `path`, in file order.

    Refused unless each name comes once and each tensor lies in the file, in as many bytes as its
    shape takes, over no other.
    """
    entries, blobs = _opened(path)
    return _object(path, DATASET, blobs.get(DATASET, b"{}")), entries


def listed(path: Path) -> dict[str, Any]:
    """What the archive says of each tensor, by the name that sharktank gives it."""
    return _object(path, TENSORS, texts(path).get(TENSORS, b""))


def _object(path: Path, name: str, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(f"{path}: {name} is not a JSON object")
    return found


def texts(path: Path) -> dict[str, bytes]:
    """The texts beside the tensors: DATASET, TENSORS, in a set's root RANKS."""
    return _opened(path)[1]


def _opened(path: Path) -> tuple[list[Entry], dict[str, bytes]]:
    with path.open("rb") as file:
        try:
            return _read(file, path.stat().st_size)
        except (
            struct.error,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise Refused(f"{path}: not an IRPA archive of tensors ({error})") from None


def _read(file, size: int) -> tuple[list[Entry], dict[str, bytes]]:
    def part(start: int, length: int) -> bytes:
        if start + length > size:  # before memory is taken for it
            raise ValueError(f"it ends at byte {start + length} of {size}")
        file.seek(start)
        return file.read(length)

    magic, *_, count, table, table_size, meta, meta_size, storage, _ = HEADER.unpack(
        part(0, HEADER.size)
    )
    if magic != b"IRPA":
        raise ValueError(f"it starts with {magic!r}")
    rows, strings = part(table, table_size), part(meta, meta_size)
    dtypes = {kind.torch: dtype for dtype, kind in FLOATS.items()}
    names, entries, blobs = set(), [], {}
    for number in range(count):
        row_size, kind, _, name_at, name_size, meta_at, length, _, place, nbytes = (
            ENTRY.unpack_from(rows, number * align(ENTRY.size, 16))
        )
        name = strings[name_at : name_at + name_size].decode()
        if (row_size, kind) != (ENTRY.size, DATA_ENTRY) or name in names or not name.isprintable():
            raise ValueError(f"entry {number} is no data entry, or another has its name")
        names.add(name)
        if storage + place + nbytes > size:
            raise ValueError(f"{name} ends at byte {storage + place + nbytes} of {size}")
        if name in (DATASET, RANKS, TENSORS):
            blobs[name] = part(storage + place, nbytes)
            continue
        tensor = json.loads(strings[meta_at : meta_at + length].removeprefix(b"PYTORCH:"))
        shape = tuple(tensor["shape"])
        if len(shape) > MOST_DIMS or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise ValueError(f"{name} has no shape of whole numbers")
        dtype = dtypes[tensor["dtype"]]
        if nbytes != prod(shape) * FLOATS[dtype].itemsize:
            raise ValueError(f"{name} has {nbytes} bytes for {dtype} {list(shape)}")
        entries.append(Entry(name, dtype, shape, storage + place, nbytes))
    _no_overlap(entries)
    return entries, blobs


def _no_overlap(entries: list[Entry]) -> None:
    place = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset < place:
            raise ValueError(f"{entry.name} lies over another tensor")
        place = entry.offset + entry.nbytes
