"""Where each tensor of a checkpoint lies, from the safetensors headers; nothing else is read.

Format: 8 bytes little-endian header length, that many bytes of JSON, then the data; each entry's
data_offsets count from the end of the header (https://github.com/huggingface/safetensors).
"""

import fnmatch
import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ingot.checkpoint.dtypes import FLOATS, Float
from ingot.checkpoint.files import Checkpoint
from ingot.refused import Refused

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


def read_checkpoint(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor of the checkpoint: shards by file name, inside a shard by name.

    That is the order of llama.cpp's converter.  Stops with one line on a damaged or absent shard,
    and on an index that disagrees with the shards.
    """
    weight_map = _weight_map(checkpoint[INDEX]) if INDEX in checkpoint else None
    if weight_map is None:
        shards = sorted(fnmatch.filter(checkpoint.files, "model*.safetensors"))
    else:
        shards = sorted(set(weight_map.values()))
    if not shards:
        raise Refused(_no_shards(checkpoint))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if shard not in checkpoint or not checkpoint[shard].is_file():
            raise Refused(
                f"{checkpoint[INDEX]}: names {shard}, which is missing beside it; fetch it again"
            )
        for name, tensor in sorted(read_header(checkpoint[shard]).items()):
            if name in tensors:
                raise Refused(f"{tensor.path}: tensor {name} is also in {tensors[name].path.name}")
            tensors[name] = tensor
    if weight_map is not None:
        _agree(checkpoint[INDEX], weight_map, tensors)
    return tensors


def read_header(path: Path, dtypes: dict[str, Float] = FLOATS) -> dict[str, Tensor]:
    """The tensors of one shard, checked: inside the file, no overlap, sizes that match shapes.

    `dtypes` are those that are expected.  Refused when the file is damaged or cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0] if size >= 8 else 0
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise Refused(
                f"{path}: header of {length} bytes in a file of {size}, expected a safetensors "
                "file; fetch it again"
            )
        text = file.read(length)
    try:
        entries = json.loads(text)
        items = [(name, entry) for name, entry in entries.items() if name != "__metadata__"]
        start = 8 + length
        tensors = {name: _tensor(path, name, entry, start, size, dtypes) for name, entry in items}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise Refused(
            f"{path}: header is not a safetensors header ({error}); fetch it again"
        ) from None
    _no_overlap(path, tensors)
    return tensors


def _tensor(
    path: Path, name: str, entry: dict, start: int, size: int, dtypes: dict[str, Float]
) -> Tensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype not in dtypes:
        known = ", ".join(sorted(dtypes))
        raise Refused(
            f"{path}: tensor {name} has dtype {dtype}, expected one of {known}; "
            "start from an unquantised checkpoint"
        )
    nbytes = prod(shape) * dtypes[dtype].itemsize
    if not 0 <= begin <= end or end - begin != nbytes:
        raise Refused(
            f"{path}: tensor {name} has offsets {begin}..{end}, expected {nbytes} bytes for "
            f"{dtype} {list(shape)}; fetch it again"
        )
    if start + end > size:
        raise Refused(
            f"{path}: tensor {name} ends at byte {start + end}, but the file has {size}; "
            "it was cut short: fetch it again"
        )
    return Tensor(name, dtype, shape, path, start + begin, nbytes)


def _no_overlap(path: Path, tensors: dict[str, Tensor]) -> None:
    last = None
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if last and tensor.offset < last.offset + last.nbytes:
            raise Refused(f"{path}: tensors {last.name} and {tensor.name} overlap; fetch it again")
        last = tensor


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(
            f"{index}: has no weight_map, expected tensor names and shards; fetch it again"
        ) from None
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or name.startswith("."):
            raise Refused(
                f"{index}: shard name {name!r} leaves its folder, expected a plain file name"
            )
        if not name.endswith(".safetensors"):
            raise Refused(f"{index}: shard {name} is no safetensors file; {PICKLE}")
    return weight_map


def _agree(index: Path, weight_map: dict[str, str], tensors: dict[str, Tensor]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise Refused(
                f"{index}: tensor {name} is not in {shard}, expected there; fetch both again"
            )
    extra = sorted(set(tensors) - set(weight_map))
    if extra:
        raise Refused(
            f"{tensors[extra[0]].path}: tensor {extra[0]} is not in the index; fetch both again"
        )


PICKLE = "pickled weights can run code when they are read: only safetensors are taken"


def _no_shards(checkpoint: Checkpoint) -> str:
    pickles = sorted(name for name in checkpoint.files if name.endswith((".bin", ".pt", ".pth")))
    if pickles:
        return f"{checkpoint}: has {pickles[0]} but no *.safetensors; {PICKLE}"
    return f"{checkpoint}: no model*.safetensors, expected a checkpoint in the hub's layout"
