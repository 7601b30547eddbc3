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
from typing import Any

from ingot.base import stream
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.tensors.dtypes import FLOATS, STORED, Float
from ingot.model.tensors.layout import FileLayout

HEADER_LIMIT = 25_000_000  # bytes; the hub client's own limit
MOST_DIMS = 8
INDEX = "model.safetensors.index.json"
# of a model that also sees or hears, where its part for text lies: by transformers 4, by 5
INSIDE = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
BESIDE = (  # tensors of its parts for images and sounds, which M.mmproj.gguf holds
    "vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.",
)  # fmt: skip
BARE = ("layers.", "embed_tokens.")  # how names begin where `model.` was left out


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard: `nbytes` bytes at `offset` of `path`, row-major, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def read_checkpoint(
    checkpoint: Checkpoint, dtypes: dict[str, Float] = FLOATS, merges: bool = False
) -> dict[str, Tensor]:
    """Every tensor of the checkpoint: shards by file name, inside a shard by name; `dtypes` are expected.

    That is the order of llama.cpp's converter.  Stops with one line on a damaged or absent shard,
    on an index that disagrees with the shards, and on an adapter, unless the caller `merges` it.
    """
    if ADAPTER in checkpoint and not merges:
        raise Refused(f"{checkpoint[ADAPTER]}: an adapter, which this step cannot merge")
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
                f"{checkpoint[INDEX]}: names {shard}, which is missing beside it; fetch or copy it again"
            )
        for name, tensor in sorted(read_header(checkpoint[shard], dtypes).items()):
            if name in tensors:
                raise Refused(f"{tensor.path}: tensor {name} is also in {tensors[name].path.name}")
            tensors[name] = tensor
    if weight_map is not None:
        _agree(checkpoint[INDEX], weight_map, tensors)
    tensors = _once(tensors)
    if any(name.startswith(BARE) for name in tensors):
        # saved without its head, as AutoModel is: transformers and llama.cpp put the prefix back, too
        inner = (*BARE, "norm.")
        return {
            f"model.{name}" if name.startswith(inner) else name: one
            for name, one in tensors.items()
        }
    return tensors


def _once(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the names of a model which only reads; refused where two tensors would have one."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        other = found.setdefault(outside(name), tensor)
        if other is not tensor:
            raise Refused(
                f"{tensor.path}: tensor {name} is also there as {other.name}, expected one of them"
            )
    return found


def outside(name: str) -> str:
    """A tensor's name as that of a model which only reads."""
    prefix = next((one for one in INSIDE if name.startswith(one)), "")
    return INSIDE[prefix] + name.removeprefix(prefix) if prefix else name


def read_header(path: Path, dtypes: dict[str, Float] = FLOATS) -> dict[str, Tensor]:
    """The tensors of one shard, checked: they fill the file, and sizes match shapes.

    `dtypes` are those that are expected.  Refused when the file is damaged or cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0] if size >= 8 else 0
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise Refused(
                f"{path}: header of {length} bytes in a file of {size}, expected a safetensors "
                "file; fetch or copy it again"
            )
        text = file.read(length)
    try:
        entries = json.loads(text, object_pairs_hook=_unique)
        items = [(name, entry) for name, entry in entries.items() if name != "__metadata__"]
        start = 8 + length
        tensors = {name: _tensor(path, name, entry, start, size, dtypes) for name, entry in items}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Refused(
            f"{path}: header is not a safetensors header ({error}); fetch or copy it again"
        ) from None
    _no_gap(path, tensors, start, size)
    return tensors


def file_layout(
    tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str] | None = None
) -> FileLayout[dict[str, int]]:
    """A new file of tensors, by name their dtypes and shapes; its entries are the offset of each.

    8 bytes of length, JSON padded to 8 bytes with blanks, data without gaps, in the order of `tensors`.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    place, places = 0, {}
    for name, (dtype, shape) in tensors.items():
        end = place + prod(shape) * STORED[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, end]}
        places[name], place = place, end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    data = 8 + len(text)
    offsets = {name: data + offset for name, offset in places.items()}
    return FileLayout(struct.pack("<Q", len(text)) + text, offsets, data + place)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Are two tensors one, byte for byte?"""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.path.open("rb") as a, other.path.open("rb") as b:
        a.seek(one.offset)
        b.seek(other.offset)
        sizes = (min(stream.BLOCK, one.nbytes - at) for at in range(0, one.nbytes, stream.BLOCK))
        return all(a.read(size) == b.read(size) for size in sizes)


def _unique(pairs: list[tuple]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{twice!r} comes twice")
    return found


def _sizes(numbers: object, what: str) -> tuple[int, ...]:
    """A shape or offsets, each a number before anybody multiplies: "x" times 2**33 is a string."""
    if (
        not isinstance(numbers, list)
        or len(numbers) > MOST_DIMS
        or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
    ):
        raise ValueError(f"{what} is not a short list of whole numbers")
    return tuple(numbers)


def _tensor(
    path: Path, name: str, entry: dict, start: int, size: int, dtypes: dict[str, Float]
) -> Tensor:
    if not name.isprintable():
        raise ValueError(f"tensor name {name!r} holds control characters")
    dtype, shape = entry["dtype"], _sizes(entry["shape"], f"the shape of {name}")
    begin, end = _sizes(entry["data_offsets"], f"data_offsets of {name}")
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
            f"{dtype} {list(shape)}; fetch or copy it again"
        )
    if start + end > size:
        raise Refused(
            f"{path}: tensor {name} ends at byte {start + end}, but the file has {size}; "
            "it was cut short: fetch or copy it again"
        )
    return Tensor(name, dtype, shape, path, start + begin, nbytes)


def _no_gap(path: Path, tensors: dict[str, Tensor], start: int, size: int) -> None:
    """The data are the tensors', each once: a byte in none of them would be in no identity."""
    place, last = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != place:
            fault = "overlap" if tensor.offset < place else "have bytes of no tensor between them"
            raise Refused(
                f"{path}: {last} and tensor {tensor.name} {fault}; fetch or copy it again"
            )
        place, last = tensor.offset + tensor.nbytes, f"tensor {tensor.name}"
    if place != size:
        raise Refused(
            f"{path}: {size - place} bytes after {last}, expected none; fetch or copy it again"
        )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = read_json(index)["weight_map"]
        names = set(weight_map.values())
    except (KeyError, TypeError, AttributeError):
        raise Refused(
            f"{index}: has no weight_map, expected tensor names and shards; fetch or copy it again"
        ) from None
    for name in names:
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or "/" in name
            or "\\" in name
            or name.startswith(".")
        ):
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


PICKLE = (
    "pickled weights can run code when they are read: only safetensors are taken; load them once with "
    "transformers and save_pretrained"
)


def _no_shards(checkpoint: Checkpoint) -> str:
    pickles = sorted(name for name in checkpoint.files if name.endswith((".bin", ".pt", ".pth")))
    if pickles:
        return f"{checkpoint}: has {pickles[0]} but no *.safetensors; {PICKLE}"
    return f"{checkpoint}: no model*.safetensors, expected a checkpoint in the hub's layout"
