"""Hold a GGUF file against the checkpoint it was made of.  Runs in envs/convert.

Read by the gguf package, dequantised, its q and k rows put back in the checkpoint's order, and
compared value by value: equal where the dtype can hold the value, the nearest one otherwise.
"""

import argparse
import hashlib
import sys
from pathlib import Path

from ingot import llama
from ingot import record as records
from ingot.checkpoint import ModelConfig, read_config, view
from ingot.safetensors import Tensor, read_checkpoint

CHUNK = 1 << 23  # values compared at a time: 32 MiB as float32


def verify_gguf(checkpoint: Path, gguf: Path, record: Path) -> None:
    import numpy as np
    from gguf import GGUFReader

    sha256 = records.digest(gguf)
    config = read_config(checkpoint / "config.json")
    sources = read_checkpoint(checkpoint)
    found = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    plans = llama.plans(config, "f32")  # for the names; the file says its own types
    if sorted(found) != sorted(plan.name for plan in plans):
        sys.exit(f"{gguf}: {len(found)} tensors, expected {len(plans)}; build it again")
    counts = {"tensors": len(plans), "tensors_equal": 0, "values": 0, "values_rounded": 0}
    largest = 0.0
    together = hashlib.sha256()
    for plan in plans:
        if plan.source is None:
            check_rope(np, gguf, config, found[plan.name].data)
            counts["tensors_equal"] += 1
            continue
        tensor, source = found[plan.name], sources[plan.source]
        order = row_order(np, plan.heads, config.head_dim, source.shape)
        rows = max(1, CHUNK * source.shape[0] // max(int(np.prod(source.shape)), 1))
        off = 0
        for first in range(0, source.shape[0], rows):
            last = min(first + rows, source.shape[0])
            wanted = values(np, source, first, last)
            got = dequantized(np, tensor, order[first:last]).reshape(wanted.shape)
            changed = int((got != wanted).sum())
            off += changed
            if changed:
                largest = max(largest, check(np, gguf, plan.name, tensor, got, wanted))
            together.update(got.tobytes())
        counts["values"] += int(np.prod(source.shape))
        counts["values_rounded"] += off
        counts["tensors_equal"] += off == 0
    records.write(
        record,
        gguf,
        sha256,
        "the checkpoint, value by value, read by gguf-py",
        {**counts, "largest_difference": largest, "limit": "the nearest value of the dtype"},
        values_sha256=together.hexdigest(),
        versions=records.versions("gguf", "numpy"),
    )


def values(np, source: Tensor, first: int, last: int):
    """Rows first..last of a checkpoint's tensor, as float32."""
    row = source.nbytes // source.shape[0]
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[source.dtype]
    raw = np.fromfile(
        source.path, kind, (last - first) * row // np.dtype(kind).itemsize,
        offset=source.offset + first * row,
    )  # fmt: skip
    if source.dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32).reshape(last - first, -1)


def row_order(np, heads: int | None, head_dim: int, shape: tuple[int, ...]):
    """Where each row of the checkpoint lies in the GGUF file."""
    rows = np.arange(shape[0])
    if heads is None:
        return rows
    head, inside = np.divmod(rows, head_dim)
    half = head_dim // 2
    return head * head_dim + 2 * (inside % half) + inside // half


def check_rope(np, gguf: Path, config: ModelConfig, factors) -> None:
    """Llama 3.1's divisors, by the formula of transformers' modeling_rope_utils in float64."""
    rope, half = config.rope, config.head_dim // 2
    turns = rope.original_context * config.rope_theta ** -(np.arange(half) / half) / (2 * np.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0, 1)  # 0: all of the factor, 1: none
    wanted = 1 / ((1 - blend) / rope.factor + blend)
    if not np.allclose(factors, wanted, rtol=1e-5, atol=0):
        sys.exit(f"{gguf}: tensor rope_freqs.weight is not config.json's scaling; build it again")


def dequantized(np, tensor, order):
    from gguf import quants

    data = tensor.data if tensor.data.ndim > 1 else tensor.data.reshape(len(tensor.data), 1)
    return quants.dequantize(np.ascontiguousarray(data[order]), tensor.tensor_type)


def check(np, gguf: Path, name: str, tensor, got, wanted) -> float:
    """Stop unless `got` is `wanted` rounded to the tensor's type; the largest difference."""
    kind = tensor.tensor_type.name
    with np.errstate(over="ignore"):
        if kind == "F16":
            right = wanted.astype(np.float16).astype(np.float32) == got
        elif kind == "BF16":
            right = np.abs(got - wanted) <= np.abs(wanted) * 2.0**-8
        elif kind == "Q8_0":
            scale = np.abs(wanted).reshape(-1, 32).max(axis=1, keepdims=True) / 127
            # half a step of q, and the rounding of the scale to float16
            limit = scale * (0.5 + 127 * 2.0**-11) + 2.0**-18
            right = np.abs(got - wanted).reshape(-1, 32) <= limit
        else:
            right = np.zeros(1, bool)
    if not right.all():
        sys.exit(f"{gguf}: tensor {name} is not the checkpoint's in {kind}; build it again")
    return float(np.abs(np.where(np.isinf(got), 0, got) - wanted).max())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", type=Path, nargs="+", required=True, help="a folder, or files of one"
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the file to check")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    options = vars(parser.parse_args(argv))
    with view(options.pop("checkpoint")) as checkpoint:
        verify_gguf(checkpoint, **options)


if __name__ == "__main__":
    main()
