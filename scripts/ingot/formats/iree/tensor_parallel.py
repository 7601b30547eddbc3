"""A tensor-parallel set of IRPA archives: a root that describes it, and one archive per rank.

Layout and words are those of sharktank 3.6.0's shard_llm_dataset, the last release that shards, so
that the files are the same.
"""

import json
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

from ingot.formats.iree import irpa
from ingot.model import features
from ingot.model.config import ModelConfig
from ingot.model.families.family import Family
from ingot.model.tensors.layout import FileLayout

AXIS = {  # of a weight [out, in]: outputs are split where each head or channel stands for itself,
    "attn_q": 0,  # inputs where the ranks' partial sums are added up; what is not here is replicated
    "attn_k": 0,
    "attn_v": 0,
    "ffn_gate": 0,
    "ffn_up": 0,
    "attn_output": 1,
    "ffn_down": 1,
    "output": 1,
}
DROPPED = "rope_freqs.weight"  # the exporter computes the scaling from config.json


@dataclass(frozen=True)
class Cut:
    """How one tensor is cut: `axis` None means whole, in rank 0 only."""

    name: str
    dtype: str  # a GGUF type's name
    shape: tuple[int, ...]  # of the whole
    axis: int | None

    def rank_part(self, tp: int) -> tuple[int, ...]:
        """The shape of one rank's part."""
        if self.axis is None:
            return self.shape
        return tuple(n // tp if axis == self.axis else n for axis, n in enumerate(self.shape))


def splits(tensors: list[tuple[str, str, tuple[int, ...]]]) -> list[Cut]:
    """The cut of each tensor (name, dtype, shape), in the set's order."""
    by_name = {name: (dtype, shape) for name, dtype, shape in tensors if name != DROPPED}
    return [
        Cut(name, *by_name[name], AXIS.get(name.split(".")[-2]))
        for name in irpa.tree_order(by_name)
    ]


def can(tp: int) -> tuple[str, ...]:
    """What a set of so many ranks, and its program, can express of features.FEATURES.

    Of several ranks no bias: each would add the whole; nor rows that are not in pairs, or norms of heads.
    """
    return (*features.BIASES, "own_gguf", "qkv_bias", "qk_norm") if tp == 1 else ()


BLOCK = (  # the tensors of a block that the exporter's own has a place for
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
    "attn_q_norm", "attn_k_norm",
)  # fmt: skip


def no_block(family: Family) -> str | None:
    """Why no program can be exported of a family, or None: a tensor without a place is left out."""
    odd = [one.gguf for one in family.layer.values() if one.gguf not in BLOCK]
    return f"sharktank's block has no {odd[0]}, which a {family.architecture} has" if odd else None


def why_not(config: ModelConfig, tp: int) -> str | None:
    """Why `config` cannot be cut into `tp` ranks, and the nearest size that it can; or None."""
    if reason := no_block(config.family):
        return reason
    counts = {
        "attention heads": config.heads,
        "KV heads": config.kv_heads,
        "feed-forward channels": config.ffn,
        "hidden channels": config.hidden,
    }
    for what, count in counts.items():
        if count % tp:
            whole = gcd(*counts.values())
            sizes = [size for size in range(1, whole + 1) if whole % size == 0]
            nearest = min(sizes, key=lambda size: abs(size - tp))
            return f"{count} {what} cannot be split over {tp} ranks; choose {nearest}"
    return None


def rank_files(root: Path, tp: int) -> list[Path]:
    """The ranks' archives beside `root`, as sharktank names them."""
    return [root.with_name(f"{root.stem}.rank{rank}{root.suffix}") for rank in range(tp)]


def rank_layout(cuts: list[Cut], tp: int, rank: int) -> FileLayout[list[irpa.Entry]]:
    """The archive of rank `rank`."""
    tensors = [
        (cut.name if cut.axis is None else f"{cut.name}.shard.{rank}", cut.dtype, cut.rank_part(tp))
        for cut in cuts
        if cut.axis is not None or rank == 0
    ]
    return irpa.archive(tensors, {})


def root_archive(properties: dict[str, Any], cuts: list[Cut], tp: int) -> bytes:
    """The whole of the root archive, from the unsharded archive's properties."""
    listed = {}
    for cut in cuts:
        if cut.axis is None:
            how = {"type_name": "ReplicatedTensor", "raw_tensors": {"": cut.name}}
            listed[cut.name] = {**how, "shard_count": tp}
            continue
        parts = {str(rank): f"{cut.name}.shard.{rank}" for rank in range(tp)}
        listed[cut.name] = {
            "type_name": "SplitPrimitiveTensor",
            "raw_tensors": parts,
            "shard_count": tp,
            "shape": list(cut.shape),
            "shard_dim": cut.axis,
        }
    texts = {
        irpa.DATASET: json.dumps(root_properties(properties, tp), indent=2).encode(),
        irpa.RANKS: json.dumps(list(range(tp))).encode(),
        irpa.TENSORS: json.dumps(listed, indent=2).encode(),
    }
    layout = irpa.archive([], texts)
    whole = bytearray(layout.size)
    for offset, text in {0: layout.head, **layout.texts}.items():
        whole[offset : offset + len(text)] = text
    return bytes(whole)


def root_properties(properties: dict[str, Any], tp: int) -> dict[str, Any]:
    """What the exporter reads of the set, in upstream's order and with its defaults."""
    arch = properties["general.architecture"]

    def of(key: str, *default: Any) -> Any:
        return properties.get(f"{arch}.{key}", *default)

    heads = of("attention.head_count")
    named = {
        "context_length": of("context_length"),
        "embedding_length": of("embedding_length"),
        "block_count": of("block_count"),
        "feed_forward_length": of("feed_forward_length"),
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": of("attention.layer_norm_rms_epsilon"),
        "attention.head_count_kv": of("attention.head_count_kv", heads),
        **({"vocab_size": of("vocab_size")} if of("vocab_size") is not None else {}),
        "expert_count": of("expert_count", 0),
        "expert_used_count": of("expert_used_count", 0),
        "rope.dimension_count": of("rope.dimension_count", 128),
        "rope.freq_base": float(of("rope.freq_base", 500000.0)),
    }
    plain = {
        "kv_cache_type": "paged",
        "block_seq_stride": 32,
        "activation_dtype": "float16",
        "attention_dtype": "float16",
        "fake_quant": True,
        "tensor_parallelism_size": tp,
        "pipeline_parallelism_size": 1,
        "block_to_pipeline_map": None,
        "pipeline_to_device_map": None,
        "attention_kernel": "torch",
        "use_hf": False,
        "static_tables": True,
        "use_qk_norm": False,
        "attention_chunk_size": None,
    }
    kept = {key: properties.get(key, value) for key, value in plain.items()}
    return {
        "general.architecture": arch,
        **{f"{arch}.{key}": value for key, value in named.items()},
        **kept,
        "tensor_parallelism_size": tp,
        "SHARK_DATASET_VERSION": 1,
    }
