"""A decoder with KV cache as an ONNX graph, in the names of optimum's exports.

Inputs: input_ids, attention_mask and position_ids, int64 [batch, sequence]; the mask is as long as past
and sequence together.  past_key_values.N.key and .value [batch, KV heads, past, head_dim].  Outputs:
logits, float32 [batch, sequence, vocabulary], and present.N.key and .value.
"""

from collections.abc import Callable

import numpy as np

from ingot.formats.onnx.graph import MICROSOFT, OLD, OPSET, Graph
from ingot.formats.onnx.weights import Form, Layout, Weights
from ingot.model.config import ModelConfig
from ingot.model.specs import rope_freqs

PORTABLE, FUSED, PREFILL = "portable", "fused", "prefill"
GRAPHS = {  # and the operators that attend
    PORTABLE: "standard operators only; batches may be padded on the left",
    FUSED: "com.microsoft's GroupQueryAttention; no padding on the left",
    PREFILL: "standard operators only; input_ids [1, sequence] alone, and no KV cache",
}
STEM = "model"
GRAPH = f"{STEM}.onnx"
PAST, PRESENT = "past_key_values", "present"
# Added to a score that must not count; float16's own least value would overflow with a score below 0.
MASKED = {"FLOAT": np.float32(-1e30), "FLOAT16": np.float16(-3e4)}


Attend = Callable[[int, str, str, str], str]  # of a layer: q, k, v [tokens, heads * head_dim]


def build(config: ModelConfig, form: Form, kind: str) -> tuple[bytes, Layout]:
    """The graph, and what lies where in its data files."""
    graph = Graph("decoder", opset_of(kind))
    weights = Weights(graph, config, form, STEM)
    batch = 1 if kind == PREFILL else "batch"
    ids = graph.input("input_ids", "INT64", [batch, "sequence"])
    if kind == PREFILL:
        attend = _standard(graph, config, form, ids)
    else:
        mask = graph.input("attention_mask", "INT64", [batch, "total"])
        attend = (_fused if kind == FUSED else _standard)(graph, config, form, ids, mask)
    weights.begin("embedding")
    x = weights.embedded(ids)
    x = trunk(graph, weights, config, x, attend)
    shape = graph.node("Concat", graph.node("Shape", ids), graph.constant([config.vocab]), axis=0)
    logits = graph.node("Reshape", x, shape)
    graph.nodes_of("Cast", [logits], ["logits"], to=graph.type("FLOAT"))
    graph.output("logits", "FLOAT", [batch, "sequence", config.vocab])
    for layer in range(config.layers if kind != PREFILL else 0):
        for name in ("key", "value"):
            past = ["batch", config.kv_heads, "past", config.head_dim]
            graph.input(f"{PAST}.{layer}.{name}", form.computed, past)
            total = ["batch", config.kv_heads, "total", config.head_dim]
            graph.output(f"{PRESENT}.{layer}.{name}", form.computed, total)
    return graph.content(), weights.layout


def opset_of(kind: str) -> int:
    """The lowest that has the operators of this kind of graph."""
    return OLD if kind == FUSED else OPSET


def trunk(
    graph: Graph, weights: Weights, c: ModelConfig, x: str, attend: Attend, rows: str = ""
) -> str:
    """Embedded tokens [tokens, hidden] to logits [tokens, vocabulary], or those of `rows` only.

    Nothing but `attend` mixes tokens.
    """
    for layer in range(c.layers):
        weights.begin(f"layers.{layer}")
        at = f"model.layers.{layer}"
        y = norm(graph, weights, c, x, f"{at}.input_layernorm.weight")
        q, k, v = (weights.linear(y, f"{at}.self_attn.{name}_proj.weight") for name in "qkv")
        if "self_attn.q_norm" in c.family.layer:
            q = by_head(graph, weights, c, q, f"{at}.self_attn.q_norm.weight", c.heads)
            k = by_head(graph, weights, c, k, f"{at}.self_attn.k_norm.weight", c.kv_heads)
        y = attend(layer, q, k, v)
        x = graph.node("Add", x, weights.linear(y, f"{at}.self_attn.o_proj.weight"))
        y = norm(graph, weights, c, x, f"{at}.post_attention_layernorm.weight")
        gate = weights.linear(y, f"{at}.mlp.gate_proj.weight")
        gate = graph.node("Mul", gate, graph.node("Sigmoid", gate))
        y = graph.node("Mul", gate, weights.linear(y, f"{at}.mlp.up_proj.weight"))
        x = graph.node("Add", x, weights.linear(y, f"{at}.mlp.down_proj.weight"))
    weights.begin("head")
    x = norm(graph, weights, c, x, "model.norm.weight")
    return weights.linear(graph.node("Gather", x, rows, axis=0) if rows else x, weights.head)


def by_head(graph: Graph, weights: Weights, c: ModelConfig, x: str, source: str, heads: int) -> str:
    """A norm of each head of x [tokens, heads * head_dim]."""
    x = graph.node("Reshape", x, graph.constant([-1, c.head_dim]))
    x = norm(graph, weights, c, x, source)
    return graph.node("Reshape", x, graph.constant([-1, heads * c.head_dim]))


def norm(graph: Graph, weights: Weights, c: ModelConfig, x: str, source: str) -> str:
    weight = weights.vector(source)
    if graph.opset >= OPSET:
        return graph.node("RMSNormalization", x, weight, axis=-1, epsilon=c.rms_eps)
    node, wide = graph.node, graph.cast(x, "FLOAT")
    mean = node("ReduceMean", node("Mul", wide, wide), axes=[-1], keepdims=1)
    root = node("Sqrt", node("Add", mean, graph.constant(np.float32(c.rms_eps))))
    return node("Mul", graph.cast(node("Div", wide, root), weights.form.computed), weight)


def _standard(
    graph: Graph, c: ModelConfig, form: Form, ids: str, attention_mask: str = ""
) -> Attend:
    """Standard operators, and a mask by order and by attention_mask; without one there is no past."""
    node, constant = graph.node, graph.constant
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    count = node("Gather", node("Shape", ids), one)
    total, start = count, zero
    if attention_mask:
        total = node("Gather", node("Shape", attention_mask), one)
        start = node("Sub", total, count)
    seen, own = (node("Range", first, total, one) for first in (zero, start))
    kept = node("LessOrEqual", seen, node("Unsqueeze", own, constant([1])))  # [sequence, total]
    if attention_mask:
        positions = graph.input("position_ids", "INT64", ["batch", "sequence"])
        real = graph.cast(node("Unsqueeze", attention_mask, constant([1, 2])), "BOOL")
        kept = node("And", kept, real)
    else:
        positions = node("Unsqueeze", own, constant([0]))
        kept = node("Unsqueeze", kept, constant([0, 1]))
    cos, sin = angles(graph, c, form, node("Unsqueeze", positions, constant([2])))
    masked = MASKED[form.computed]
    mask = node("Where", kept, constant(masked * 0), constant(masked))
    flat = constant([-1, c.heads * c.head_dim])

    def heads_apart(x: str, heads: int) -> str:
        """[tokens, heads * head_dim] to [batch, heads, sequence, head_dim]"""
        shape = node("Concat", node("Shape", ids), constant([heads, c.head_dim]), axis=0)
        return node("Transpose", node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def attend(layer: int, q: str, k: str, v: str) -> str:
        q = node("RotaryEmbedding", heads_apart(q, c.heads), cos, sin)
        k = node("RotaryEmbedding", heads_apart(k, c.kv_heads), cos, sin)
        v = heads_apart(v, c.kv_heads)
        if attention_mask:  # not by Attention's own inputs for the past: TensorRT takes none
            kv = zip((k, v), _pasts(layer), _presents(layer), strict=True)
            k, v = (graph.nodes_of("Concat", [past, x], [name], axis=2)[0] for x, past, name in kv)
        y = node("Attention", q, k, v, mask, scale=c.head_dim**-0.5)
        return node("Reshape", node("Transpose", y, perm=[0, 2, 1, 3]), flat)

    return attend


def _fused(graph: Graph, c: ModelConfig, form: Form, ids: str, attention_mask: str) -> Attend:
    """GroupQueryAttention, whose positions count from each row's first token.

    Padding on the left would be attended to without a word: a Reshape fails where there is some.
    """
    node, constant = graph.node, graph.constant
    first = node("ReduceMin", node("Gather", attention_mask, constant([0]), axis=1), keepdims=0)
    count = node("Shape", attention_mask, start=1)
    held = node("Add", count, node("Sub", constant([1]), first))
    rows = node("Concat", node("Shape", attention_mask, end=1), held, axis=0)
    attention_mask = graph.nodes_of(
        "Reshape", [attention_mask, rows], ["mask"], at="padding_on_the_left_is_not_supported"
    )[0]
    total = node("Gather", node("Shape", attention_mask), constant(np.int64(1)))
    every = node("Range", constant(np.int64(0)), total, constant(np.int64(1)))
    cos, sin = angles(graph, c, form, node("Unsqueeze", every, constant([1])))
    filled = node("ReduceSum", attention_mask, constant([1]), keepdims=0)
    last = graph.cast(node("Sub", filled, constant([1])), "INT32")
    total = graph.cast(total, "INT32")
    flat = constant([-1, c.heads * c.head_dim])

    def attend(layer: int, q: str, k: str, v: str) -> str:
        heads = ((q, c.heads), (k, c.kv_heads), (v, c.kv_heads))
        qkv = [
            node(
                "Reshape", x,
                node("Concat", node("Shape", ids), constant([count * c.head_dim]), axis=0),
            )
            for x, count in heads
        ]  # fmt: skip
        found = graph.nodes_of(
            "GroupQueryAttention", [*qkv, *_pasts(layer), last, total, cos, sin],
            [f"attention.{layer}", *_presents(layer)], MICROSOFT,
            num_heads=c.heads, kv_num_heads=c.kv_heads, scale=c.head_dim**-0.5, do_rotary=1,
        )  # fmt: skip
        return node("Reshape", found[0], flat)

    return attend


def _pasts(layer: int) -> list[str]:
    return [f"{PAST}.{layer}.key", f"{PAST}.{layer}.value"]


def _presents(layer: int) -> list[str]:
    return [f"{PRESENT}.{layer}.key", f"{PRESENT}.{layer}.value"]


def angles(graph: Graph, c: ModelConfig, form: Form, positions: str) -> tuple[str, str]:
    """cos and sin of int64 positions [..., 1]: [..., head_dim / 2], computed in float32."""
    per_token = graph.constant(frequencies(c).astype(np.float32))
    angle = graph.node("Mul", graph.cast(positions, "FLOAT"), per_token)
    cos, sin = graph.node("Cos", angle), graph.node("Sin", angle)
    if form.computed == "FLOAT":
        return cos, sin
    return graph.cast(cos, form.computed), graph.cast(sin, form.computed)


def frequencies(c: ModelConfig) -> np.ndarray:
    """Radians per token, [head_dim / 2]."""
    found = 1 / c.rope_theta ** (np.arange(0, c.head_dim, 2) / c.head_dim)
    return found if c.rope is None else found / np.array(rope_freqs(c), np.float32)
