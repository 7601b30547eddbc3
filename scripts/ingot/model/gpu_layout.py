"""How a model lies on GPUs: weights and KV cache of each, which layouts are legal, which fit.

tp is the tensor parallel size, pp the number of pipeline stages; bytes unless said otherwise.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from ingot.model.config import ModelConfig
from ingot.model.specs import parameters, sizes_of
from ingot.model.tensors.dtypes import TYPES

GIB = 1 << 30
SIZES = (1, 2, 4, 8, 16)  # tensor parallel sizes that there are rules for
STAGES = (1, 2, 3, 4, 8)
UTILIZATION = 0.9  # of a GPU's memory that weights, cache and the rest may take
REST = 4 * GIB  # activations, context and graphs of a GPU; grows with the batch


@dataclass(frozen=True)
class ServerKind:
    """What a server does with a model that decides how much of it lies on a GPU."""

    name: str
    splits_embedding: bool  # over the ranks, or a whole one on each
    repeats_kv_heads: bool  # when there are more ranks than KV heads, or refuses
    stages: bool = False  # can lay layers over pipeline stages
    even_stages: bool = False  # each of as many layers


SHORTFIN = ServerKind("shortfin", splits_embedding=False, repeats_kv_heads=False)
VLLM = ServerKind("vllm", splits_embedding=True, repeats_kv_heads=True, stages=True)
TRTLLM = ServerKind(
    "tensorrt-llm", splits_embedding=True, repeats_kv_heads=True, stages=True, even_stages=True
)


SERVERS = {server.name: server for server in (SHORTFIN, VLLM, TRTLLM)}


WHOLE = {"experts", "q_rank", "kv_a"}  # of weights with so many rows each rank has all


@dataclass(frozen=True)
class Shape:
    """What lies on GPUs of a model that there is no table of, by transformers' own reading of config.json.

    `cached` are the layers that keep keys and values, `sliding` those of them that see no further than
    `window` tokens; `latent` are the values of a token in one of them where they are joined, else 0;
    `states` are the layers that keep a state instead; `weights` are the checkpoint's bytes.
    """

    context: int  # tokens
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    cached: int
    latent: int
    weights: int
    sliding: int = 0
    window: int = 0
    states: int = 0


@dataclass(frozen=True)
class GpuLayout:
    """One way to lay a model over tp x pp GPUs.  `wrong` says why it cannot; then all else is 0."""

    tp: int
    pp: int
    wrong: str | None = None
    weights: int = 0  # of the fullest GPU
    kv_per_token: int = 0  # on one GPU
    tokens: int = 0  # that fit into one GPU's cache
    fits: bool = False  # the weights, and a cache of the context asked for

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


def kv_per_token(config: ModelConfig, itemsize: int = 2) -> int:
    """Bytes of cache that a token takes, over all GPUs, when no head is repeated."""
    return config.layers * _values(config, 1) * itemsize


def why_not(config: ModelConfig, tp: int, pp: int, server: ServerKind) -> str | None:
    """Why the model cannot be laid out so, or None."""
    kv = config.kv_heads
    if config.heads % tp:
        return f"{config.heads} attention heads are not divisible by {tp}"
    if kv % tp and not (server.repeats_kv_heads and tp % kv == 0):
        return f"{kv} KV heads are not divisible by {tp}"
    ffn = config.experts.ffn if config.experts else config.ffn
    if ffn % tp:
        return f"{ffn} feed-forward channels are not divisible by {tp}"
    if config.scaled and ffn // tp % config.scaled[0]:
        return (
            f"{ffn // tp} feed-forward channels of a rank are no multiple of {config.scaled[0]}, a block "
            "of its FP8"
        )
    if pp > config.layers or (server.even_stages and config.layers % pp):
        return f"{config.layers} layers do not divide into {pp} stages"
    return None


def gpu_layout(
    config: ModelConfig,
    tp: int,
    pp: int,
    server: ServerKind,
    memory: int,
    context: int,
    itemsize: int = 2,
    per_weight: float = 0,
) -> GpuLayout:
    """The layout on GPUs of `memory` bytes, for one request of `context` tokens.

    `per_weight` are the bytes of a weight of its linear layers, where they are quantised.
    """
    if reason := why_not(config, tp, pp, server):
        return GpuLayout(tp, pp, reason)
    c, layers = config, ceil(config.layers / pp)
    # the last layers: the first may have no experts
    linear = sum(_matrices(config, tp, n) for n in range(c.layers - layers, c.layers)) / layers
    table = c.vocab * c.hidden
    embedding = table / tp if server.splits_embedding else table
    ends = max(embedding, table / tp) if pp > 1 else embedding + (0 if c.tied else table / tp)
    norms = (2 * layers + 1) * c.hidden * (2 if server.splits_embedding else 4)  # float32 in IRPA
    routers = c.experts.count * c.hidden if c.experts else 0  # of a layer: they stay whole
    width = per_weight or (1 if c.scaled else itemsize)  # bytes of a weight
    linear = (linear - routers) * width + routers * itemsize
    packed = TYPES["MXFP4"].size / TYPES["MXFP4"].block  # bytes of a weight, as vLLM holds them too
    linear += _joined(config) / tp * (packed if c.packed else width)
    weights = int(linear * layers + ends * itemsize + norms)
    per_token = layers * _values(config, tp) * itemsize
    room = memory * UTILIZATION - weights - REST
    tokens = max(0, int(room // per_token))
    return GpuLayout(tp, pp, None, weights, per_token, tokens, tokens >= context)


def _values(config: ModelConfig, tp: int) -> int:
    """What a layer of a rank keeps of a token: keys and values, or the latent, which each has whole."""
    if m := config.latent:
        return m.kept
    return 2 * max(1, config.kv_heads // tp) * config.head_dim


def _joined(config: ModelConfig) -> int:
    """Weights of a layer's experts that are one tensor."""
    sizes = sizes_of(config)
    each = sum(prod(sizes[word] for word in one.shape) for _, one in config.family.stacks)
    return sizes["experts"] * each


@functools.lru_cache(4096)  # of each target of each model it is asked
def _matrices(config: ModelConfig, tp: int, layer: int) -> float:
    """Weights of a layer's matrices on one rank: some are on each, and KV heads that are too few."""
    sizes, held = sizes_of(config, layer), 0.0
    kept = max(1, config.kv_heads // tp) * config.head_dim
    for name, one in config.family.layer.items():
        if len(one.shape) < 2:
            continue
        whole = prod(sizes[word] for word in one.shape)
        if "{}" in name:
            held += sizes["experts"] * whole / tp
        elif "kv" in one.shape:
            held += whole // sizes["kv"] * kept
        elif "qkv" in one.shape:
            held += whole // sizes["qkv"] * (sizes["q"] / tp + 2 * kept)
        else:
            held += whole if one.shape[0] in WHOLE else whole / tp
    for _, part in config.family.parts:  # by turning its rows stay as many
        held += config.heads * prod(sizes[word] for word in part.shape) / tp
    return held


def of_shape(
    shape: Shape, tp: int, pp: int, memory: int, context: int, itemsize: int = 2
) -> GpuLayout:
    """The layout of a Shape on GPUs of `memory` bytes: weights evenly, which is right but for norms."""
    if shape.heads % tp:
        return GpuLayout(tp, pp, f"{shape.heads} attention heads are not divisible by {tp}")
    kv = shape.kv_heads
    if not shape.latent and kv % tp and tp % kv:
        return GpuLayout(tp, pp, f"{kv} KV heads are not divisible by {tp}")
    if pp > shape.layers:
        return GpuLayout(tp, pp, f"{shape.layers} layers do not divide into {pp} stages")
    values = shape.latent or 2 * max(1, kv // tp) * shape.head_dim
    per_token = values * ceil(shape.cached / pp) * itemsize
    weights = ceil(shape.weights / tp / pp)
    room = memory * UTILIZATION - weights - REST
    tokens = max(0, int(room // per_token)) if per_token else context
    return GpuLayout(tp, pp, None, weights, per_token, tokens, tokens >= context)


def layouts(
    config: ModelConfig, server: ServerKind, memory: int, context: int, per_weight: float = 0
) -> Iterator[GpuLayout]:
    """Every layout that is looked at, legal or not."""
    for tp in SIZES:
        for pp in STAGES if server.stages else (1,):
            yield gpu_layout(config, tp, pp, server, memory, context, per_weight=per_weight)


@dataclass(frozen=True)
class Needs:
    """Memory of a whole model, and how many GPUs of one size hold it: guide 003's two tables."""

    weights: float  # bytes
    cache: float  # bytes, of one request of the whole context
    gpus_for_weights: int
    gpus_for_all: int


def needs(
    config: ModelConfig, context: int, memory: int, nominal: float | None = None, kv_heads: int = 0
) -> Needs:
    """`nominal` billions of parameters instead of the real number; `kv_heads` instead of config's.

    A lower bound of GPUs, since it looks at bytes alone; `layouts` says what can be.  The guide adds
    GB of weights to GiB of cache and divides by 80: so does this, when `nominal` is given.
    """
    real = replace(config, kv_heads=kv_heads or config.kv_heads)
    weights = nominal * 1e9 * 2 if nominal else parameters(config) * 2
    cache = kv_per_token(real) * context
    if not nominal:
        return by_bytes(weights, cache, memory)
    unit = memory / GIB * 1e9
    return Needs(weights, cache, ceil(weights / unit), ceil((weights + cache / GIB * 1e9) / unit))


def by_bytes(weights: float, cache: float, memory: int) -> Needs:
    """How many GPUs of `memory` bytes hold the weights, and the cache too."""
    return Needs(weights, cache, ceil(weights / memory), ceil((weights + cache) / memory))
