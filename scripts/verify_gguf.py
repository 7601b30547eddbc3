"""Compare a GGUF file with the checkpoint it was made from.  Runs in envs/convert.

Read by the gguf package.  The metadata must be exactly those that follow from the checkpoint's config,
tokenizer and generation files, and the catalogue.  Tensors are dequantised, q and k rows put back in
the checkpoint's order, and compared value by value: equal where the dtype can hold the value, the
nearest one otherwise.
"""

import argparse
import hashlib
from pathlib import Path

from ingot.checkpoint import llama
from ingot.checkpoint.config import ModelConfig, read_config
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.checkpoint.safetensors import read_checkpoint
from ingot.entry import run
from ingot.gguf import header
from ingot.gguf.metadata import FILE_TYPE
from ingot.refused import Refused
from ingot.verify import verification
from ingot.verify.values import Comparison, row_order


def verify_gguf(
    checkpoint: Checkpoint,
    gguf: Path,
    dtype: str,
    name: str,
    pre_tokenizer: str,
    record: Path,
    license: str | None = None,
) -> None:
    import numpy as np
    from gguf import GGUFReader

    sha256 = verification.digest(gguf)
    config = read_config(checkpoint["config.json"])
    sources = read_checkpoint(checkpoint)
    reader = GGUFReader(gguf)
    wanted = header.pairs(checkpoint, config, dtype, name, pre_tokenizer, license)
    metadata_pairs = header.check(gguf, reader.fields, wanted)
    found = {tensor.name: tensor for tensor in reader.tensors}
    specs = llama.specs(config, "f32")  # for the names; the file says its own types
    if sorted(found) != sorted(spec.name for spec in specs):
        raise Refused(f"{gguf}: {len(found)} tensors, expected {len(specs)}; build it again")
    comparison, together = Comparison(gguf), hashlib.sha256()
    for spec in specs:
        tensor = found[spec.name]
        if spec.source is None:
            check_rope(np, gguf, config, tensor.data)
            comparison.equal()
            continue
        source = sources[spec.source]
        order = row_order(spec.heads, config.head_dim, source.shape)

        def rows(first: int, last: int, tensor=tensor, order=order):
            got = dequantized(np, tensor, order[first:last])
            together.update(got.tobytes())
            return got

        comparison.tensor(spec.name, tensor.tensor_type.name, source, rows)
    verification.write(
        record,
        gguf,
        sha256,
        "the checkpoint, value by value, and its config and tokenizer files, read by gguf-py",
        {**comparison.checks(), "metadata_pairs": metadata_pairs},
        values_sha256=together.hexdigest(),
        versions=verification.versions("gguf", "numpy"),
    )


def check_rope(np, gguf: Path, config: ModelConfig, factors) -> None:
    """Llama 3.1's divisors, by the formula of transformers' modeling_rope_utils in float64."""
    rope, half = config.rope, config.head_dim // 2
    turns = rope.original_context * config.rope_theta ** -(np.arange(half) / half) / (2 * np.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0, 1)  # 0: all of the factor, 1: none
    wanted = 1 / ((1 - blend) / rope.factor + blend)
    if not np.allclose(factors, wanted, rtol=1e-5, atol=0):
        raise Refused(
            f"{gguf}: tensor rope_freqs.weight is not config.json's scaling; build it again"
        )


def dequantized(np, tensor, order):
    from gguf import quants

    data = tensor.data if tensor.data.ndim > 1 else tensor.data.reshape(len(tensor.data), 1)
    return quants.dequantize(np.ascontiguousarray(data[order]), tensor.tensor_type)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--gguf", type=Path, required=True, help="the file to check")
    parser.add_argument("--dtype", choices=sorted(FILE_TYPE), required=True, help="of the matrices")
    parser.add_argument("--name", required=True, help="general.name")
    parser.add_argument("--pre-tokenizer", required=True, help="such as llama-bpe")
    parser.add_argument("--license", help="general.license")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_gguf(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
