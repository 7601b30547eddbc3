"""A TensorRT-LLM checkpoint: one directory of config.json and rankR.safetensors.

Format: docs/source/architecture/checkpoint.md of TensorRT-LLM 1.2.1, and the classes PretrainedConfig,
LLaMAConfig and QWenConfig.  R is pipeline stage * tensor parallel size + tensor parallel rank; weights are
[out, in]; layers are numbered from 0 in each stage.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from ingot.base.refused import Refused
from ingot.model.checkpoint import safetensors
from ingot.model.config import ModelConfig
from ingot.model.families.family import Family
from ingot.model.tensors.layout import FileLayout

CAN = ("own_gguf", "qkv_bias", "qk_norm", "experts")  # of features.FEATURES
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}  # ours -> TensorRT-LLM's
STORED = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}  # -> safetensors'
LAYER, ROUTER = "transformer.layers", ".mlp.router.weight"
UNQUANTISED = "its experts are not quantised; ask for the target without fp8, int8_sq or int4_awq"
EMBEDDING = {"rows": 0, "columns": 1, "whole": None}  # the axis that is split over the ranks


@dataclass(frozen=True)
class Mapping:
    """How a model is laid over ranks; `embedding` is a key of EMBEDDING."""

    tp: Annotated[int, "tensor parallel size"] = 1
    pp: Annotated[int, "number of pipeline stages"] = 1
    embedding: Annotated[str, "how the embedding lies over the ranks", tuple(EMBEDDING)] = "rows"

    def __post_init__(self):
        if self.tp < 1 or self.pp < 1:
            raise Refused(f"--tp {self.tp} --pp {self.pp}: expected numbers from 1")

    @property
    def world(self) -> int:
        return self.tp * self.pp

    def rank(self, stage: int, rank: int) -> int:
        return stage * self.tp + rank


@dataclass(frozen=True)
class Cut:
    """A tensor of the checkpoint, and where its parts go in the ranks of one pipeline stage.

    `axis` 0 splits rows, 1 columns, None gives each rank all.  Rows come in `parts` of equal size,
    the last perhaps short: fewer parts than ranks are repeated, part r * parts // tp to rank r.
    """

    source: str
    shape: tuple[int, ...]  # of the source
    name: str  # in the ranks' files
    stage: int
    axis: int | None
    parts: int
    start: int = 0  # the row of the rank's tensor where it begins: q, k and v make one tensor
    experts: int = 0  # of a tensor [expert, out, in]: how many; 0: it is [out, in]

    def rows(self) -> int:
        """Of one rank's part, padding included."""
        return -(-self.shape[0] // self.parts) if self.axis == 0 else self.shape[0]

    def columns(self) -> tuple[int, ...]:
        """The other dimensions of one rank's part."""
        return tuple(n // self.parts for n in self.shape[1:]) if self.axis == 1 else self.shape[1:]


def no_class(family: Family) -> str | None:
    """Why there is no checkpoint of a family, or None."""
    known = family.trtllm is not None
    return None if known else f"no TensorRT-LLM checkpoint is made of a {family.architecture}"


def why_not(config: ModelConfig, mapping: Mapping) -> str | None:
    """Why `config` cannot be cut so, in one clause; or None.  KV heads may be repeated."""
    if reason := no_class(config.family):
        return reason
    tp, pp, c = mapping.tp, mapping.pp, config
    for what, count, size, parts in (
        ("attention heads", c.heads, tp, "ranks"),
        ("feed-forward channels", c.ffn, tp, "ranks"),
        ("layers", c.layers, pp, "pipeline stages"),
    ):
        if count % size:
            divisors = [n for n in range(1, count + 1) if count % n == 0]
            near = min(divisors, key=lambda n: abs(n - size))
            return f"{count} {what} cannot be split over {size} {parts}; choose {near}"
    if c.kv_heads % tp and tp % c.kv_heads:
        return (
            f"{c.kv_heads} KV heads can neither be split nor repeated over {tp} ranks; "
            f"choose a divisor or a multiple of {c.kv_heads}"
        )
    if mapping.embedding == "columns" and c.hidden % tp:
        return f"{c.hidden} hidden channels cannot be split over {tp} ranks; split embedding rows"
    return None


def cuts(config: ModelConfig, mapping: Mapping) -> list[Cut]:
    """The way of every tensor, in the order in which the ranks' files hold them."""
    c, tp = config, mapping.tp
    each, last = c.layers // mapping.pp, mapping.pp - 1
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    kv_parts = min(c.kv_heads, tp)
    vocabulary = (c.vocab, c.hidden)
    found = []

    def add(source, shape, name, stage, axis=None, parts=tp, start=0, kind="weight") -> None:
        found.append(Cut(f"{source}.{kind}", shape, f"{name}.{kind}", stage, axis, parts, start))

    axis = EMBEDDING[mapping.embedding] if tp > 1 else None
    add("model.embed_tokens", vocabulary, "transformer.vocab_embedding", 0, axis)
    for layer in range(c.layers):
        stage, local = divmod(layer, each)
        there, here = f"model.layers.{layer}", f"{LAYER}.{local}"
        attention, qkv = f"{there}.self_attn", f"{here}.attention.qkv"
        add(f"{there}.input_layernorm", (c.hidden,), f"{here}.input_layernorm", stage)
        v_start = q // tp + kv // kv_parts
        for kind, inputs in (("weight", (c.hidden,)), ("bias", ()))[: 1 + c.attention_bias]:
            one = {"axis": 0, "kind": kind}
            add(f"{attention}.q_proj", (q, *inputs), qkv, stage, **one)
            more = {**one, "parts": kv_parts}
            add(f"{attention}.k_proj", (kv, *inputs), qkv, stage, start=q // tp, **more)
            add(f"{attention}.v_proj", (kv, *inputs), qkv, stage, start=v_start, **more)
        for name in ("q_norm", "k_norm"):
            if f"self_attn.{name}" in c.family.layer:
                there_norm = f"{here}.attention.{name[0]}_layernorm"
                add(f"{attention}.{name}", (c.head_dim,), there_norm, stage)
        add(f"{attention}.o_proj", (c.hidden, q), f"{here}.attention.dense", stage, 1)
        add(
            f"{there}.post_attention_layernorm", (c.hidden,), f"{here}.post_layernorm", stage
        )  # fmt: skip
        if c.experts:
            found += _experts(config, mapping, there, here, stage)
            continue
        add(f"{there}.mlp.gate_proj", (c.ffn, c.hidden), f"{here}.mlp.fc", stage, 0)  # sic
        add(f"{there}.mlp.up_proj", (c.ffn, c.hidden), f"{here}.mlp.gate", stage, 0)
        add(f"{there}.mlp.down_proj", (c.hidden, c.ffn), f"{here}.mlp.proj", stage, 1)
    add("model.norm", (c.hidden,), "transformer.ln_f", last)
    head = "model.embed_tokens" if c.tied else "lm_head"
    add(head, vocabulary, "lm_head", last, 0)
    return found


def _experts(config: ModelConfig, mapping: Mapping, there: str, here: str, stage: int) -> list[Cut]:
    """Those of a layer, and its router: of each expert up and gate are one matrix, in this order."""
    c, tp, count = config, mapping.tp, config.experts.count
    names = {one.gguf: f"{there}.{name}.weight" for name, one in c.family.layer.items()}
    up, gate, down, router = (
        names[f"ffn_{kind}"] for kind in ("up_exps", "gate_exps", "down_exps", "gate_inp")
    )
    rows, found = c.experts.ffn // tp, []
    for expert in range(count):
        for part, name in enumerate((up, gate)):
            start = (2 * expert + part) * rows
            shape, fc = (c.experts.ffn, c.hidden), f"{here}.mlp.fc.weight"
            found.append(Cut(name.format(expert), shape, fc, stage, 0, tp, start, count))
    for expert in range(count):
        shape, proj = (c.hidden, c.experts.ffn), f"{here}.mlp.proj.weight"
        found.append(Cut(down.format(expert), shape, proj, stage, 1, tp, expert * c.hidden, count))
    return [*found, Cut(router, (count, c.hidden), f"{here}{ROUTER}", stage, None, tp)]


def shapes(cuts_of_stage: list[Cut]) -> dict[str, tuple[int, ...]]:
    """Each tensor of a rank's file and its shape; all ranks of a stage are alike."""
    found: dict[str, tuple[int, ...]] = {}
    for cut in cuts_of_stage:
        rows = cut.start + cut.rows()
        stacked = (cut.experts, rows // cut.experts) if cut.experts else (rows,)
        found[cut.name] = (*stacked, *cut.columns())
    return found


def file_layout(tensors: dict[str, tuple[int, ...]], dtype: str) -> FileLayout[dict[str, int]]:
    """A rank's file; its entries are the offset of each tensor."""
    return safetensors.file_layout(
        {name: (stored(name, dtype), shape) for name, shape in tensors.items()}
    )


def stored(name: str, dtype: str) -> str:
    """A tensor's dtype, in safetensors' word: a router's is float32, in any checkpoint."""
    return "F32" if name.endswith(ROUTER) else STORED[dtype]


def of_stage(found: list[Cut], stage: int) -> list[Cut]:
    return [cut for cut in found if cut.stage == stage]


def document(config: ModelConfig, mapping: Mapping, dtype: str) -> dict[str, Any]:
    """The checkpoint's config.json, in TensorRT-LLM's words."""
    c, rope = config, None
    if c.rope:
        named = asdict(c.rope)
        original = named.pop("original_context")
        rope = {**named, "original_max_position_embeddings": original, "rope_type": "llama3"}
    return {
        "architecture": c.architecture,
        "dtype": DTYPES[dtype],
        "logits_dtype": "float32",
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_size": c.head_dim,
        "intermediate_size": c.ffn,
        "hidden_act": activation(c.family),
        "norm_epsilon": c.rms_eps,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": c.context,
        "rotary_base": c.rope_theta,
        "rotary_scaling": rope,
        "attn_bias": c.attention_bias,
        "mlp_bias": False,
        **(c.family.trtllm or {}),
        "use_parallel_embedding": mapping.embedding != "whole",
        "embedding_sharding_dim": EMBEDDING[mapping.embedding] or 0,
        "mapping": ranks(config, mapping),
        **({"moe": routing(config)} if c.experts else {}),
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def activation(family: Family) -> str:
    """The word for SiLU and its gate: experts have one of their own."""
    return "swiglu" if family.experts else "silu"


def ranks(config: ModelConfig, mapping: Mapping) -> dict[str, int]:
    """How config.json says a mapping; each expert is split over all ranks of a stage."""
    found = {"world_size": mapping.world, "tp_size": mapping.tp, "pp_size": mapping.pp}
    return found | ({"moe_tp_size": mapping.tp, "moe_ep_size": 1} if config.experts else {})


def routing(config: ModelConfig) -> dict[str, int]:
    """Of experts; 1: the weights of those that a token goes through have the sum 1."""
    one = config.experts
    return {"num_experts": one.count, "top_k": one.used, "normalization_mode": 1}


def places(cut: Cut, tp: int) -> Iterator[tuple[int, int, list[int]]]:
    """First row, end row and ranks of each part of a cut by rows."""
    size = cut.rows()
    for part in range(cut.parts):
        first, end = part * size, min((part + 1) * size, cut.shape[0])
        if first < end:
            yield first, end, [rank for rank in range(tp) if rank * cut.parts // tp == part]
