"""Where each tensor of a checkpoint lies, from the safetensors headers; nothing else is read.

Format: 8 bytes little-endian header length, that many bytes of JSON, then the data; each entry's
data_offsets count from the end of the header (https://github.com/huggingface/safetensors).
"""

import json
import struct
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path

ITEMSIZE = {"F32": 4, "F16": 2, "BF16": 2}  # bytes; the dtypes that a float checkpoint holds
HEADER_LIMIT = 25_000_000  # bytes; the hub client's own limit
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard: `nbytes` bytes at `offset` of `path`, row-major, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint in `folder`: shards by file name, inside a shard by name.

    That is the order of llama.cpp's converter.  Stops with one line on a damaged or absent shard,
    and on an index that disagrees with the shards.
    """
    index = folder / INDEX
    weight_map = _weight_map(index) if index.is_file() else None
    if weight_map is None:
        shards = sorted(path.name for path in folder.glob("model*.safetensors"))
    else:
        shards = sorted(set(weight_map.values()))
    if not shards:
        sys.exit(_no_shards(folder))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            sys.exit(f"{index}: names {shard}, which is not in {folder}; fetch it again")
        for name, tensor in sorted(read_header(folder / shard).items()):
            if name in tensors:
                sys.exit(f"{tensor.path}: tensor {name} is also in {tensors[name].path.name}")
            tensors[name] = tensor
    if weight_map is not None:
        _agree(index, weight_map, tensors)
    return tensors


def read_header(path: Path, itemsize: dict[str, int] = ITEMSIZE) -> dict[str, Tensor]:
    """The tensors of one shard, checked: inside the file, no overlap, sizes that match shapes.

    `itemsize` names the dtypes that are expected, and the bytes of a value.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0] if size >= 8 else 0
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            sys.exit(
                f"{path}: header of {length} bytes in a file of {size}, expected a safetensors "
                "file; fetch it again"
            )
        text = file.read(length)
    try:
        entries = json.loads(text)
        items = [(name, entry) for name, entry in entries.items() if name != "__metadata__"]
        start = 8 + length
        tensors = {name: _tensor(path, name, entry, start, size, itemsize) for name, entry in items}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        sys.exit(f"{path}: header is not a safetensors header ({error}); fetch it again")
    _no_overlap(path, tensors)
    return tensors


def _tensor(
    path: Path, name: str, entry: dict, start: int, size: int, itemsize: dict[str, int]
) -> Tensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype not in itemsize:
        known = ", ".join(sorted(itemsize))
        sys.exit(
            f"{path}: tensor {name} has dtype {dtype}, expected one of {known}; "
            "start from an unquantised checkpoint"
        )
    nbytes = prod(shape) * itemsize[dtype]
    if not 0 <= begin <= end or end - begin != nbytes:
        sys.exit(
            f"{path}: tensor {name} has offsets {begin}..{end}, expected {nbytes} bytes for "
            f"{dtype} {list(shape)}; fetch it again"
        )
    if start + end > size:
        sys.exit(
            f"{path}: tensor {name} ends at byte {start + end}, but the file has {size}; "
            "it was cut short: fetch it again"
        )
    return Tensor(name, dtype, shape, path, start + begin, nbytes)


def _no_overlap(path: Path, tensors: dict[str, Tensor]) -> None:
    last = None
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if last and tensor.offset < last.offset + last.nbytes:
            sys.exit(f"{path}: tensors {last.name} and {tensor.name} overlap; fetch it again")
        last = tensor


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        sys.exit(f"{index}: has no weight_map, expected tensor names and shards; fetch it again")
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or name.startswith("."):
            sys.exit(f"{index}: shard name {name!r} leaves its folder, expected a plain file name")
        if not name.endswith(".safetensors"):
            sys.exit(f"{index}: shard {name} is no safetensors file; {PICKLE}")
    return weight_map


def _agree(index: Path, weight_map: dict[str, str], tensors: dict[str, Tensor]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].path.name != shard:
            sys.exit(f"{index}: tensor {name} is not in {shard}, expected there; fetch both again")
    extra = sorted(set(tensors) - set(weight_map))
    if extra:
        sys.exit(
            f"{tensors[extra[0]].path}: tensor {extra[0]} is not in the index; fetch both again"
        )


PICKLE = "pickled weights can run code when they are read: only safetensors are taken"


def _no_shards(folder: Path) -> str:
    pickles = sorted(p.name for ext in ("*.bin", "*.pt", "*.pth") for p in folder.glob(ext))
    if pickles:
        return f"{folder}: has {pickles[0]} but no *.safetensors; {PICKLE}"
    return f"{folder}: no model*.safetensors, expected a checkpoint in the hub's layout"
