"""Merge a tensor-parallel set's ranks and compare them with the checkpoint.  Runs in envs/convert.

Every value of every tensor, put together as the root archive says, its q and k rows back in the
checkpoint's order.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ingot.architecture import llama
from ingot.architecture.config import read_config
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.checkpoint.safetensors import read_checkpoint
from ingot.entry import run
from ingot.gguf import metadata
from ingot.iree import irpa, tensor_parallel
from ingot.refused import Refused
from ingot.tensors.dtypes import FLOATS
from ingot.verify import verification
from ingot.verify.values import Comparison, as_float32, row_order


def verify_shards(checkpoint: Checkpoint, root: Path, ranks: list[Path], record: Path) -> None:
    sha256 = verification.digest(root)
    config = read_config(checkpoint["config.json"])
    sources = read_checkpoint(checkpoint)
    listed = irpa.texts(root)
    tensors = json.loads(listed[irpa.TENSORS])
    if json.loads(listed[irpa.RANKS]) != list(range(len(ranks))):
        raise Refused(f"{root}: is of other ranks than the {len(ranks)} given; build the set again")
    parts = [{entry.name: (path, entry) for entry in irpa.read(path)[1]} for path in ranks]
    specs = [spec for spec in llama.specs(config, "f32") if spec.source]
    if config.tied:
        specs.append(llama.head_of_tied(config, "f32"))
    if sorted(tensors) != sorted(spec.name for spec in specs):
        raise Refused(f"{root}: {len(tensors)} tensors, expected {len(specs)}; build the set again")
    first = [entry for _, entry in parts[0].values() if len(entry.shape) > 1]
    properties = metadata.properties(config, first[0].dtype.lower())
    wanted = tensor_parallel.root_properties(properties, len(ranks))
    verification.same_properties(root, irpa.read(root)[0], wanted)
    comparison = Comparison(root)
    for spec in specs:
        described = tensors[spec.name]
        names = described["raw_tensors"]
        held = [place_of(root, parts[int(rank or 0)], name) for rank, name in sorted(names.items())]
        axis = described.get("shard_dim")
        whole = merged_shape([part.shape for part in held], axis)
        if whole != spec.shape or len(held) != (1 if axis is None else len(ranks)):
            raise Refused(
                f"{root}: tensor {spec.name} merges to {list(whole)}; build the set again"
            )
        order = row_order(spec.heads, config.head_dim, spec.shape)
        kind = held[0].kind

        def rows(first: int, last: int, held=held, axis=axis, order=order):
            return merged(held, axis, order[first:last])

        comparison.tensor(spec.name, kind, sources[spec.source], rows)
    verification.write(
        record,
        root,
        sha256,
        "the checkpoint, value by value, the ranks merged",
        {**comparison.checks(), "ranks": len(ranks)},
        ranks_sha256=[verification.digest(path) for path in ranks],
        versions=verification.versions("numpy"),
    )


class Part:
    """One rank's part of a tensor; a row is read when it is asked for."""

    def __init__(self, path: Path, entry: irpa.Entry):
        self.kind, self.shape = entry.dtype, entry.shape
        shape = (*entry.shape, 1) if len(entry.shape) == 1 else entry.shape
        self.data = np.memmap(path, FLOATS[entry.dtype].numpy, "r", entry.offset, shape)

    def rows(self, index: np.ndarray) -> np.ndarray:
        return as_float32(self.data[index], self.kind)


def place_of(root: Path, parts: dict, name: str) -> Part:
    if name not in parts:
        raise Refused(f"{root}: names {name}, which its rank does not hold; build the set again")
    return Part(*parts[name])


def merged_shape(shapes: list[tuple[int, ...]], axis: int | None) -> tuple[int, ...]:
    whole = list(shapes[0])
    if axis is not None:
        whole[axis] = sum(shape[axis] for shape in shapes)
    return tuple(whole)


def merged(held: list[Part], axis: int | None, index: np.ndarray) -> np.ndarray:
    """Rows `index` of the whole tensor."""
    if axis == 1:
        return np.hstack([part.rows(index) for part in held])
    each = held[0].shape[0]
    found = [part.rows(index[index // each == n] - n * each) for n, part in enumerate(held)]
    out = np.empty((len(index), found[0].shape[1]), np.float32)
    for n, rows in enumerate(found):
        out[index // each == n] = rows
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--root", type=Path, required=True, help="the set's root archive")
    parser.add_argument("--ranks", type=Path, nargs="+", required=True, help="one archive per rank")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_shards(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
