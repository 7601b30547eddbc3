"""Merge a tensor-parallel set's ranks, compare them with the checkpoint, and open it.  Runs in envs/iree.

Every tensor, the q and k rows back in the checkpoint's order, with what digest_weights.py says of its own.
What the set must hold is written down here again, by transformers' reading of config.json: no table, name
or number is shared with shard_irpa.py.  Every byte is compared; iree.runtime and sharktank load it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ingot.base.console import stderr_to_log
from ingot.base.options import DigestsFile, ReadingFile, RecordFile, step
from ingot.base.refused import Refused
from ingot.formats.iree import consumers, irpa
from ingot.model.tensors.dtypes import FLOATS
from ingot.parity import digests as digests_of
from ingot.parity import reading as reading_of
from ingot.parity import verification
from ingot.parity.reading import Reading
from ingot.parity.values import Comparison, row_order

LAYER = {  # of model.layers.N -> of blk.N, the axis that the ranks split, whose heads are interleaved
    "self_attn.q_proj": ("attn_q", 0, "heads"),
    "self_attn.k_proj": ("attn_k", 0, "kv_heads"),
    "self_attn.v_proj": ("attn_v", 0, None),
    "self_attn.o_proj": ("attn_output", 1, None),
    "mlp.gate_proj": ("ffn_gate", 0, None),
    "mlp.up_proj": ("ffn_up", 0, None),
    "mlp.down_proj": ("ffn_down", 1, None),
    "input_layernorm": ("attn_norm", None, None),
    "post_attention_layernorm": ("ffn_norm", None, None),
}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as torch names them


@dataclass(frozen=True)
class Expected:
    """A tensor of the set, by its name there: of which tensor, of which shape, and how it is split."""

    source: str
    shape: tuple[int, ...]
    axis: int | None
    heads: int | None


def expected(model: Reading) -> Iterator[tuple[str, Expected]]:
    """Every tensor that a set of this model holds."""
    hidden, ffn = model["hidden"], model["ffn"]
    q, kv = (model[name] * model["head_dim"] for name in ("heads", "kv_heads"))
    table = (model["vocab"], hidden)
    shapes = {
        "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q),
        "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn),
    }  # fmt: skip
    embedding = "model.embed_tokens.weight"
    head = embedding if model["tied"] else "lm_head.weight"
    yield "token_embd.weight", Expected(embedding, table, None, None)
    yield "output_norm.weight", Expected("model.norm.weight", (hidden,), None, None)
    yield "output.weight", Expected(head, table, 1, None)
    for layer in range(model["layers"]):
        for source, (name, axis, heads) in LAYER.items():
            place = f"model.layers.{layer}.{source}.weight"
            count = model[heads] if heads else None
            shape = shapes.get(name, (hidden,))
            yield f"blk.{layer}.{name}.weight", Expected(place, shape, axis, count)


def properties(model: Reading, ranks: int) -> dict:
    """What the root must say of the model: sharktank's words, transformers' numbers."""
    numbers = {
        "context_length": model["context"], "embedding_length": model["hidden"],
        "block_count": model["layers"], "feed_forward_length": model["ffn"],
        "attention.head_count": model["heads"],
        "attention.layer_norm_rms_epsilon": float(np.float32(model["rms_eps"])),
        "attention.head_count_kv": model["kv_heads"], "vocab_size": model["vocab"],
        "expert_count": 0, "expert_used_count": 0, "rope.dimension_count": model["head_dim"],
        "rope.freq_base": float(np.float32(model["rope_theta"])),
    }  # fmt: skip
    return {
        "general.architecture": "llama",
        **{f"llama.{name}": value for name, value in numbers.items()},
        "kv_cache_type": "paged", "block_seq_stride": 32, "activation_dtype": "float16",
        "attention_dtype": "float16", "fake_quant": True, "tensor_parallelism_size": ranks,
        "pipeline_parallelism_size": 1, "block_to_pipeline_map": None, "pipeline_to_device_map": None,
        "attention_kernel": "torch", "use_hf": False, "static_tables": True, "use_qk_norm": False,
        "attention_chunk_size": None, "SHARK_DATASET_VERSION": 1,
    }  # fmt: skip


def verify_shards(
    digests: DigestsFile,
    reading: ReadingFile,
    dtype: Annotated[str, "of the matrices", ["f16", "bf16", "f32"]],
    root: Annotated[Path, "the set's root archive"],
    ranks: Annotated[list[Path], "one archive per rank"],
    record: RecordFile,
) -> None:
    sha256 = verification.digest(root)
    model, count = reading_of.read(reading), len(ranks)
    reading_of.hold_plain(root, model)
    sources = digests_of.read(digests)
    digests_of.hold_tied(root, sources, model["tied"])
    wanted = dict(expected(model))
    entries = [described(root, ranks, rank, wanted, dtype.upper()) for rank in range(count)]
    the_root(root, wanted, model, count)
    parts = [
        {entry.name: (path, entry) for entry in one}
        for path, one in zip(ranks, entries, strict=True)
    ]
    comparison = Comparison(root)
    for name, one in wanted.items():
        if one.source not in sources:
            raise Refused(f"{root}: {one.source} is not in its source")
        held = [place_of(root, parts[rank], raw) for rank, raw in raw_names(name, one, count)]
        order = row_order(one.heads, model["head_dim"], one.shape)

        def rows(first: int, last: int, held=held, axis=one.axis, order=order) -> np.ndarray:
            return merged(held, axis, order[first:last])

        digests_of.compare(comparison, name, held[0].kind, sources[one.source], rows)
    opened(root, ranks, entries, wanted, dtype)
    verification.write(
        record,
        root,
        sha256,
        "the checkpoint, each tensor by SHA-256, the ranks merged; loaded by iree.runtime and sharktank",
        {**comparison.checks(), "ranks": count},
        ranks_sha256=[verification.digest(path) for path in ranks],
        versions=verification.versions("numpy", "iree-base-runtime", "sharktank"),
    )


def raw_names(name: str, one: Expected, ranks: int) -> list[tuple[int, str]]:
    """The rank and the name of each part of a tensor."""
    if one.axis is None:
        return [(0, name)]
    return [(rank, f"{name}.shard.{rank}") for rank in range(ranks)]


def described(
    root: Path, ranks: list[Path], rank: int, wanted: dict[str, Expected], dtype: str
) -> list[irpa.Entry]:
    """The tensors of one rank's archive; refused unless they are those expected, and nothing else is."""
    path, names = ranks[rank], {}
    for name, one in wanted.items():
        shape = tuple(
            n // len(ranks) if axis == one.axis else n for axis, n in enumerate(one.shape)
        )
        kind = dtype if len(shape) > 1 else "F32"
        names |= {raw: (kind, shape) for r, raw in raw_names(name, one, len(ranks)) if r == rank}
    entries = irpa.read(path)[1]
    found = {entry.name: (entry.dtype, entry.shape) for entry in entries}
    for name in [*names, *found]:
        if found.get(name) != names.get(name):
            raise Refused(
                f"{path}: tensor {name} is {found.get(name, 'missing')}, expected {names.get(name, 'none')}"
            )
    consumers.exact(path, irpa.archive([(e.name, e.dtype, e.shape) for e in entries], {}))
    return entries


def the_root(root: Path, wanted: dict[str, Expected], model: Reading, ranks: int) -> None:
    """Refuse a root that does not say exactly this of the set."""
    said, entries = irpa.read(root)
    if entries:
        raise Refused(f"{root}: holds tensor {entries[0].name}, expected none of its own")
    verification.same_properties(root, said, properties(model, ranks))
    texts = irpa.texts(root)
    listed = irpa.listed(root)
    for name in [*wanted, *listed]:
        one = wanted.get(name)
        how: dict[str, Any] | None = None
        if one and one.axis is None:
            how = {"type_name": "ReplicatedTensor", "raw_tensors": {"": name}, "shard_count": ranks}
        elif one:
            parts = {str(rank): raw for rank, raw in raw_names(name, one, ranks)}
            how = {
                "type_name": "SplitPrimitiveTensor", "raw_tensors": parts, "shard_count": ranks,
                "shape": list(one.shape), "shard_dim": one.axis,
            }  # fmt: skip
        if repr(listed.get(name)) != repr(how):
            raise Refused(f"{root}: {irpa.TENSORS}: {name} is {listed.get(name)}, expected {how}")
    again = {
        irpa.DATASET: json.dumps(said, indent=2).encode(),
        irpa.RANKS: json.dumps(list(range(ranks))).encode(),
        irpa.TENSORS: json.dumps(listed, indent=2).encode(),
    }
    if list(texts) != list(again):
        raise Refused(f"{root}: holds {', '.join(texts)}, expected {', '.join(again)}")
    consumers.exact(root, irpa.archive([], again))


def opened(
    root: Path,
    ranks: list[Path],
    entries: list[list[irpa.Entry]],
    wanted: dict[str, Expected],
    dtype: str,
) -> None:
    """Load it as its users do; refused where they find other tensors."""
    with stderr_to_log(f"{root}: loading by iree.runtime and sharktank"):
        for path, one in zip([root, *ranks], [[], *entries], strict=True):
            consumers.in_iree(path, one)
        found = consumers.in_sharktank(root)
    for name, one in wanted.items():
        kind = DTYPES[dtype.upper() if len(one.shape) > 1 else "F32"]
        split = "ReplicatedTensor" if one.axis is None else "SplitPrimitiveTensor"
        if found.get(name) != (split, kind, one.shape):
            raise Refused(
                f"{root}: tensor {name} is {found.get(name)} to sharktank, expected {split} of {kind} "
                f"{list(one.shape)}"
            )


class Part:
    """One rank's part of a tensor; a row is read when it is asked for."""

    def __init__(self, path: Path, entry: irpa.Entry):
        self.kind, self.shape = entry.dtype, entry.shape
        shape = (*entry.shape, 1) if len(entry.shape) == 1 else entry.shape
        self.data = np.memmap(path, FLOATS[entry.dtype].numpy, "r", entry.offset, shape)


def place_of(root: Path, parts: dict, name: str) -> Part:
    if name not in parts:
        raise Refused(f"{root}: names {name}, which its rank does not hold; build the set again")
    return Part(*parts[name])


def merged(held: list[Part], axis: int | None, index: np.ndarray) -> np.ndarray:
    """Rows `index` of the whole tensor, as they are stored."""
    if axis == 1:
        return np.hstack([part.data[index] for part in held])
    each = held[0].shape[0]
    place = index // each
    if (place == place[0]).all():
        return held[place[0]].data[index - place[0] * each]
    out = np.empty((len(index), *held[0].data.shape[1:]), held[0].data.dtype)
    for n, part in enumerate(held):
        out[place == n] = part.data[index[place == n] - n * each]
    return out


if __name__ == "__main__":
    step(verify_shards)
