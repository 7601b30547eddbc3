"""Merge the ranks of a TensorRT-LLM checkpoint and compare them with their source.  Runs in envs/convert.

Every tensor in every rank, copies and padding too, with what digest_weights.py says of the source's.
Written without the converter's table.  A quantised weight is multiplied out by its scales, and must be
within half a step of the checkpoint's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.options import DigestsFile, Limits, ReadingFile, RecordFile, step
from ingot.base.refused import Refused
from ingot.formats.tensorrt import checkpoint as trtllm_checkpoint
from ingot.formats.tensorrt.checkpoint import TrtllmCheckpoint
from ingot.formats.tensorrt.trtllm import Mapping
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity import digests as digests_of
from ingot.parity import divergence, limits, trtllm_model, verification
from ingot.parity import reading as reading_of
from ingot.parity import texts as texts_of
from ingot.parity.adapted import sources as sources_of
from ingot.parity.digests import Digested
from ingot.parity.trtllm_model import Weight
from ingot.parity.trtllm_weights import check_scales, multiplied, rows_of
from ingot.parity.values import Comparison, chunks, stored, values

MERGED = {  # tensor of a layer -> the checkpoint's that lie in it one below the other; split axis
    "input_layernorm": (["input_layernorm"], None),
    "attention.qkv": (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], 0),
    "attention.dense": (["self_attn.o_proj"], 1),
    "post_layernorm": (["post_attention_layernorm"], None),
    "mlp.fc": (["mlp.gate_proj"], 0),
    "mlp.gate": (["mlp.up_proj"], 0),
    "mlp.proj": (["mlp.down_proj"], 1),
}
QKV = MERGED["attention.qkv"]
OF_SOME = {  # of some families, by whether their checkpoint has it
    "attention.qkv.bias": QKV,
    "attention.q_layernorm": (["self_attn.q_norm"], None),
    "attention.k_layernorm": (["self_attn.k_norm"], None),
}
# in files of old, what transformers reads no more
UNREAD = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
# qwen_type, by which TensorRT-LLM gives it norms of heads
QWEN = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


READ = {  # of its config.json -> of transformers' reading
    "architecture": "architecture",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_size": "head_dim",
    "intermediate_size": "ffn",
    "max_position_embeddings": "context",
    "norm_epsilon": "rms_eps",
    "rotary_base": "rope_theta",
    "attn_bias": "attention_bias",
}
# ExpertScaleNormalizationMode.RENORMALIZE of TensorRT-LLM's layers/moe.py: as Mixtral's router does
SUM_ONE = 1
EXPERT = "block_sparse_moe.experts.{}.{}"  # of Mixtral; w3 is up, w1 gate, w2 down
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
ALGORITHMS = {"fp8": "FP8", "int8_sq": "W8A8_SQ_PER_CHANNEL", "int4_awq": "W4A16_AWQ"}


@dataclass(frozen=True)
class Piece:
    """Rows start.. of one rank's tensor, that are `rows` rows of the source's."""

    rank: int
    name: str
    start: int
    rows: int


@dataclass(frozen=True)
class Asked:
    """What the checkpoint's maker was asked for."""

    mapping: Mapping
    dtype: Annotated[str, "that was asked for", tuple(DTYPES)] = "f16"
    quant: Annotated[str | None, "that was asked for", tuple(ALGORITHMS)] = None


def verify_trtllm(
    digests: DigestsFile,
    reading: ReadingFile,
    trtllm_checkpoint_: Annotated[Path, "the directory to verify"],
    record: RecordFile,
    asked: Asked,
    checkpoint: Checkpoint | None = None,
    texts: Annotated[Path | None, "by encode_texts.py, of a quantised one"] = None,
    scores: Annotated[Path | None, "by score_corpus.py: runs it, in envs/transformers"] = None,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(trtllm_checkpoint_)
    built = trtllm_checkpoint.read(trtllm_checkpoint_)
    model = reading_of.read(reading)
    as_asked(built, asked)
    as_read(built, model)
    reading_of.hold_plain(trtllm_checkpoint_, model, ("attention_bias", "experts"))
    if built.quant and not checkpoint:
        raise Refused("--checkpoint: missing, expected it of what is quantised")
    sources = digests_of.read(digests)
    digests_of.hold_tied(trtllm_checkpoint_, sources, model["tied"])
    exact = sources_of(checkpoint) if built.quant else {}
    vocab = sources["model.embed_tokens.weight"].shape[0]
    comparison, padding, left = Comparison(trtllm_checkpoint_), 0, {*sources}
    if model["experts"]:
        as_stacked(built, model)
    covered = set()
    for source, axis, pieces in merges(built, model["tied"], sources):
        if source not in sources:
            raise Refused(f"{trtllm_checkpoint_}: {source} is not in its source")
        covered |= {(piece.rank, piece.name) for piece in pieces}
        if quantised(built, pieces[0].name):
            compare_quantised(built, comparison, exact[source], axis, pieces)
        else:
            compare(built, comparison, sources[source], axis, pieces)
        left -= {source}
    left = {name for name in left if not name.endswith(UNREAD) and name != "lm_head.weight"}
    if left := sorted(left):
        raise Refused(f"{trtllm_checkpoint_}: {left[0]} is in no rank, expected it")
    ends = [*padded(built, vocab)]
    covered |= {(rank, name) for rank, name, _ in ends}
    of_rank = {(rank, name) for rank, tensors in enumerate(built.ranks) for name in tensors}
    scales = {one for one in of_rank if not one[1].endswith((".weight", ".bias"))}
    if more := sorted(of_rank - scales - covered):
        raise Refused(
            f"{trtllm_checkpoint_}: {more[0][1]} of rank {more[0][0]} is none of its source's"
        )
    for rank, name, used in ends:
        rest = rows_of(built.ranks[rank][name], used, built.ranks[rank][name].shape[0])
        if rest.any():
            raise Refused(f"{trtllm_checkpoint_}: padding of {name} is not zero in rank {rank}")
        padding += len(rest)
    more, how = {}, "each tensor by SHA-256"
    if built.quant:
        how = "value by value of what is quantised, each other tensor by SHA-256"
        algorithm = built.document["quantization"]["quant_algo"]
        more = {"quant_algo": algorithm, "limit": "half a step of the quantised weight"}
        if scores and checkpoint:
            logits = trtllm_model.logits_of(
                checkpoint["config.json"], built, weights(built, sources, model["tied"])
            )
            numbers = divergence.measure(trtllm_checkpoint_, texts_of.read(texts), scores, logits)
            known = limits.numbers(algorithm.lower(), limits.pairs(limit or []))
            more["numbers"] = divergence.held(trtllm_checkpoint_, numbers, known)
    verification.write(
        record,
        trtllm_checkpoint_,
        sha256,
        f"the checkpoint, {how}, the ranks merged; its numbers, by transformers",
        {
            **comparison.checks(),
            **more,
            "ranks": built.mapping.world,
            "rows_of_padding": padding,
        },
        config_sha256=verification.digest(trtllm_checkpoint_ / "config.json"),
        ranks_sha256=[
            verification.digest(trtllm_checkpoint_ / f"rank{rank}.safetensors")
            for rank in range(built.mapping.world)
        ],
        versions=verification.versions("numpy"),
    )


def as_asked(built: TrtllmCheckpoint, asked: Asked) -> None:
    """Refuse the checkpoint of another dtype, quantisation or layout."""
    mapping, wanted = built.mapping, asked.mapping
    found = {
        "dtype": (built.dtype, DTYPES[asked.dtype]),
        "quant_algo": (built.document["quantization"]["quant_algo"], ALGORITHMS.get(asked.quant)),
        "tp_size": (mapping.tp, wanted.tp),
        "pp_size": (mapping.pp, wanted.pp),
        "the embedding's layout": (mapping.embedding, wanted.embedding),
    }
    for name, (said, expected) in found.items():
        if said != expected:
            raise Refused(
                f"{built.folder / 'config.json'}: {name} is {said}, expected {expected} as asked for"
            )


def as_read(built: TrtllmCheckpoint, model: reading_of.Reading) -> None:
    """Refuse a config.json whose numbers are not transformers' of the source."""
    path, said = built.folder / "config.json", built.document
    rows = model["vocab"]
    if built.quant and rows <= said["vocab_size"] < rows + 64:  # ModelOpt pads it
        rows = said["vocab_size"]
    wanted = {**{key: model[name] for key, name in READ.items()}, "vocab_size": rows}
    wanted["qwen_type"] = QWEN.get(model["architecture"])
    wanted["hidden_act"] = "swiglu" if model["experts"] else "silu"
    if model["experts"]:
        tp = said["mapping"]["tp_size"]
        wanted["mapping"] = {**said["mapping"], "moe_tp_size": tp, "moe_ep_size": 1}
        count, used = model["experts"], model["experts_used"]
        wanted["moe"] = {"num_experts": count, "top_k": used, "normalization_mode": SUM_ONE}
        wanted["intermediate_size"] = model["expert_ffn"]
    for key, value in wanted.items():
        if said.get(key) != value:
            raise Refused(f"{path}: {key} is {said.get(key)}, expected {value} by transformers")
    scaling = said["rotary_scaling"] or {}
    if scaling.get("rope_type", "default") != model["rope_type"] or not np.allclose(
        frequencies(said["rotary_base"], said["head_size"], scaling),
        model["frequencies"],
        rtol=1e-5,
        atol=0,
    ):
        raise Refused(
            f"{path}: rotary_scaling is {said['rotary_scaling']}, whose frequencies are not those of "
            f"transformers ({model['rope_type']})"
        )


def frequencies(base: float, size: int, scaling: dict) -> np.ndarray:
    """Rope's, as TensorRT-LLM computes them of its config.json: plain, or Llama 3.1's."""
    plain = base ** -(np.arange(0, size, 2) / size)
    if not scaling:
        return plain
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (kept + (1 - kept) / scaling["factor"])


def merges(
    built: TrtllmCheckpoint, tied: bool, sources: dict[str, Digested]
) -> Iterator[tuple[str, int | None, list[Piece]]]:
    """Each source tensor, the axis it is split along, and the pieces that make up one copy of it."""
    c, m, vocab = built.config, built.mapping, sources["model.embed_tokens.weight"].shape[0]
    last = (m.pp - 1) * m.tp
    embedding = {"rows": 0, "columns": 1}.get(m.embedding) if m.tp > 1 else None
    yield from copies(
        m.tp, "model.embed_tokens.weight", "transformer.vocab_embedding.weight", 0, embedding,
        vocab, -(-c.vocab // m.tp) if embedding == 0 else vocab,
    )  # fmt: skip
    yield from copies(m.tp, "model.norm.weight", "transformer.ln_f.weight", last, None, 0, c.hidden)
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    yield from copies(m.tp, head, "lm_head.weight", last, 0, vocab, -(-c.vocab // m.tp))
    each = c.layers // m.pp
    heads = {"q_proj": c.heads, "k_proj": c.kv_heads, "v_proj": c.kv_heads}
    for layer in range(c.layers):
        first = layer // each * m.tp
        for here, (there, axis) in {**MERGED, **OF_SOME}.items():
            end = "bias" if here.endswith("bias") else "weight"
            if here in OF_SOME and f"model.layers.{layer}.{there[0]}.{end}" not in sources:
                continue
            if c.experts and here.startswith("mlp."):  # its own are below
                continue
            name = f"transformer.layers.{layer % each}.{here.removesuffix('.bias')}.{end}"
            start = 0
            for source in there:
                kind = source.split(".")[-1]
                total = heads[kind] * c.head_dim if kind in heads else c.ffn
                rows = max(total // m.tp, c.head_dim) if kind in heads else c.ffn // m.tp
                if axis != 0:
                    rows = c.head_dim if kind in ("q_norm", "k_norm") else c.hidden
                source = f"model.layers.{layer}.{source}.{end}"
                repeats = kind in heads  # KV heads may be fewer than ranks
                yield from copies(m.tp, source, name, first, axis, total, rows, start, repeats)
                start += rows
        if c.experts:
            yield from of_experts(built, layer)


def of_experts(built: TrtllmCheckpoint, layer: int) -> Iterator:
    """The same of a layer's experts, which lie one below the other: up and gate of each, and down."""
    c, m = built.config, built.mapping
    stage, here = divmod(layer, c.layers // m.pp)
    first, mlp = stage * m.tp, f"transformer.layers.{here}.mlp"
    rows = c.ffn // m.tp
    for expert in range(c.experts.count):
        for name, into, axis, lines, start in (
            ("w3", "fc", 0, rows, 2 * rows * expert),
            ("w1", "fc", 0, rows, 2 * rows * expert + rows),
            ("w2", "proj", 1, c.hidden, c.hidden * expert),
        ):
            source = f"model.layers.{layer}.{EXPERT.format(expert, name)}.weight"
            target = f"{mlp}.{into}.weight"
            yield from copies(m.tp, source, target, first, axis, c.ffn, lines, start)
    source = f"model.layers.{layer}.block_sparse_moe.gate.weight"
    yield from copies(m.tp, source, f"{mlp}.router.weight", first, None, 0, c.experts.count)


def as_stacked(built: TrtllmCheckpoint, model: reading_of.Reading) -> None:
    """Refuse experts of other shapes, or routers of another dtype, than TensorRT-LLM loads."""
    count, hidden = model["experts"], model["hidden"]
    part = model["expert_ffn"] // built.mapping.tp
    shapes = {
        ".mlp.fc.weight": (count, 2 * part, hidden),
        ".mlp.proj.weight": (count, hidden, part),
        ".mlp.router.weight": (count, hidden),
    }
    for rank in built.ranks:
        for name, tensor in rank.items():
            wanted = next((one for end, one in shapes.items() if name.endswith(end)), tensor.shape)
            router = name.endswith(".router.weight")
            if tensor.shape != wanted or (router and tensor.dtype != "F32"):
                raise Refused(
                    f"{tensor.path}: tensor {name} is {tensor.dtype} {list(tensor.shape)}, expected "
                    f"{'F32 ' * router}{list(wanted)}"
                )


def weights(built: TrtllmCheckpoint, sources: dict[str, Digested], tied: bool) -> Iterator[Weight]:
    """Every tensor of the source, multiplied out of the ranks' parts of it."""
    for source, axis, pieces in merges(built, tied, sources):
        layer, codes = pieces[0].name.removesuffix(".weight"), quantised(built, pieces[0].name)

        def rows(piece: Piece, first: int, last: int, layer=layer, codes=codes):
            tensors = built.ranks[piece.rank]
            if codes:
                return multiplied(built.quant, tensors, layer, first, last)[0]
            return rows_of(tensors[piece.name], first, last)

        shape = sources[source].shape
        values = merged(axis, pieces, 0, shape[0], rows).reshape(shape)
        ranks = [piece.rank for piece in pieces] if axis == 1 else [pieces[0].rank]
        yield Weight(source, layer, ranks, np.ascontiguousarray(values, np.float32))


def copies(tp, source, name, first, axis, total, rows, start=0, repeats=False):
    """One list of pieces for each time that the ranks hold the source."""
    if axis == 0:
        parts = -(-total // rows)
        repeated = tp // parts if repeats else 1
        for copy in range(repeated):
            ranks = [first + part * repeated + copy for part in range(parts)]
            ends = [min(rows, total - part * rows) for part in range(parts)]
            pieces = [Piece(r, name, start, n) for r, n in zip(ranks, ends, strict=True)]
            yield source, axis, pieces
    elif axis == 1:
        yield source, axis, [Piece(first + rank, name, start, rows) for rank in range(tp)]
    else:
        for rank in range(tp):
            yield source, axis, [Piece(first + rank, name, start, rows)]


def padded(built: TrtllmCheckpoint, vocab: int) -> Iterator[tuple[int, str, int]]:
    """Rank, tensor and the number of rows in use, of those that the vocabulary does not fill."""
    c, m = built.config, built.mapping
    rows = -(-c.vocab // m.tp)
    tensors = {"lm_head.weight": (m.pp - 1) * m.tp}
    if m.embedding == "rows" and m.tp > 1:
        tensors["transformer.vocab_embedding.weight"] = 0
    for name, first in tensors.items():
        for rank in range(m.tp):
            used = min(max(vocab - rank * rows, 0), rows)
            if used < rows:
                yield first + rank, name, used


def quantised(built: TrtllmCheckpoint, name: str) -> bool:
    """Does a rank hold the tensor `name` as codes and scales?"""
    return built.quant is not None and name.removesuffix(".weight").endswith(
        trtllm_checkpoint.LINEAR
    )


def compare(
    built: TrtllmCheckpoint,
    comparison: Comparison,
    source: Digested,
    axis: int | None,
    pieces: list[Piece],
) -> None:
    """Compare one copy of a source with it."""
    kind = built.ranks[pieces[0].rank][pieces[0].name].dtype

    def held(piece: Piece, first: int, last: int) -> np.ndarray:
        tensor = built.ranks[piece.rank][piece.name]
        lines = (int(np.prod(tensor.shape[:-1])), tensor.shape[-1])
        return stored(replace(tensor, shape=lines) if tensor.shape[1:] else tensor, first, last)

    def rows(first: int, last: int) -> np.ndarray:
        return merged(axis, pieces, first, last, held)

    digests_of.compare(comparison, source.name, kind, source, rows)


def compare_quantised(
    built: TrtllmCheckpoint,
    comparison: Comparison,
    source: Tensor,
    axis: int | None,
    pieces: list[Piece],
) -> None:
    """The same of a weight that the ranks hold as codes and scales."""
    layer = pieces[0].name.removesuffix(".weight")
    for rank in {piece.rank for piece in pieces}:
        check_scales(built.quant, built.ranks[rank], layer)

    def product(which: int):
        def rows(piece: Piece, first: int, last: int) -> np.ndarray:
            return multiplied(built.quant, built.ranks[piece.rank], layer, first, last)[which]

        return rows

    for first, last in chunks(source.shape):
        wanted = values(source, first, last)
        got = merged(axis, pieces, first, last, product(0))
        step = merged(axis, pieces, first, last, product(1))
        away = np.abs(got - wanted)
        if not (away <= step).all():  # NaN is not
            raise Refused(
                f"{built.folder}: tensor {source.name} is {away.max():.3g} away from the source in "
                f"{pieces[0].name}, expected half a step at most"
            )
        comparison.differs_by(float(away.max()))
        comparison.counts["values_rounded"] += int((got != wanted).sum())
    comparison.counts["values"] += int(np.prod(source.shape))
    comparison.equal(False)


def merged(axis: int | None, pieces: list[Piece], first: int, last: int, rows) -> np.ndarray:
    """Rows first..last of the source, out of the pieces' `rows(piece, first, last)`."""
    if axis != 0:
        return np.hstack([rows(p, p.start + first, p.start + last) for p in pieces])
    found, at = [], 0
    for p in pieces:
        begin, end = max(first, at), min(last, at + p.rows)
        if begin < end:
            found.append(rows(p, p.start + begin - at, p.start + end - at))
        at += p.rows
    return np.vstack(found)


if __name__ == "__main__":
    step(verify_trtllm)
