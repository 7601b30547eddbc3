"""Merge a tensor-parallel set's ranks and hold them against the checkpoint.  Runs in envs/convert.

Every value of every tensor, put together as the root archive says, its q and k rows back in the
checkpoint's order.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from ingot.checkpoint import llama
from ingot.checkpoint.config import read_config, view
from ingot.checkpoint.safetensors import read_checkpoint
from ingot.iree import irpa
from ingot.verify import record as records
from ingot.verify.values import Tally, row_order

NUMPY = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def verify_shards(checkpoint: Path, root: Path, ranks: list[Path], record: Path) -> None:
    sha256 = records.digest(root)
    config = read_config(checkpoint / "config.json")
    sources = read_checkpoint(checkpoint)
    listed = irpa.texts(root)
    tensors = json.loads(listed[irpa.TENSORS])
    if json.loads(listed[irpa.RANKS]) != list(range(len(ranks))):
        sys.exit(f"{root}: is of other ranks than the {len(ranks)} given; build the set again")
    parts = [{entry.name: (path, entry) for entry in irpa.read(path)[1]} for path in ranks]
    plans = [plan for plan in llama.plans(config, "f32") if plan.source]
    if sorted(tensors) != sorted(plan.name for plan in plans):
        sys.exit(f"{root}: {len(tensors)} tensors, expected {len(plans)}; build the set again")
    tally = Tally(root)
    for plan in plans:
        described = tensors[plan.name]
        names = described["raw_tensors"]
        held = [place_of(root, parts[int(rank or 0)], name) for rank, name in sorted(names.items())]
        axis = described.get("shard_dim")
        whole = merged_shape([part.shape for part in held], axis)
        if whole != plan.shape or len(held) != (1 if axis is None else len(ranks)):
            sys.exit(f"{root}: tensor {plan.name} merges to {list(whole)}; build the set again")
        order = row_order(plan.heads, config.head_dim, plan.shape)
        kind = held[0].kind

        def rows(first: int, last: int, held=held, axis=axis, order=order):
            return merged(held, axis, order[first:last])

        tally.tensor(plan.name, kind, sources[plan.source], rows)
    records.write(
        record,
        root,
        sha256,
        "the checkpoint, value by value, the ranks merged",
        {**tally.checks(), "ranks": len(ranks)},
        ranks_sha256=[records.digest(path) for path in ranks],
        versions=records.versions("numpy"),
    )


class Part:
    """One rank's part of a tensor; a row is read when it is asked for."""

    def __init__(self, path: Path, entry: irpa.Entry):
        self.kind, self.shape = entry.dtype, entry.shape
        shape = (*entry.shape, 1) if len(entry.shape) == 1 else entry.shape
        self.data = np.memmap(path, NUMPY[entry.dtype], "r", entry.offset, shape)

    def rows(self, index: np.ndarray) -> np.ndarray:
        found = self.data[index]
        if self.kind == "BF16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)


def place_of(root: Path, parts: dict, name: str) -> Part:
    if name not in parts:
        sys.exit(f"{root}: names {name}, which its rank does not hold; build the set again")
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
    parser.add_argument(
        "--checkpoint", type=Path, nargs="+", required=True, help="a folder, or files of one"
    )
    parser.add_argument("--root", type=Path, required=True, help="the set's root archive")
    parser.add_argument("--ranks", type=Path, nargs="+", required=True, help="one archive a rank")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    options = vars(parser.parse_args(argv))
    with view(options.pop("checkpoint")) as checkpoint:
        verify_shards(checkpoint, **options)


if __name__ == "__main__":
    main()
