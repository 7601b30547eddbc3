"""How tokens meet in an ONNX graph: rope, masks, windows, caches, by two sets of operators."""

from collections.abc import Callable

import numpy as np

from ingot.formats.onnx.graph import MICROSOFT, Graph
from ingot.formats.onnx.weights import Form
from ingot.model.config import ModelConfig
from ingot.model.rope import LinearRope
from ingot.model.specs import rope_freqs

PAST, PRESENT = "past_key_values", "present"
# Added to a score that must not count; float16's own least value would overflow with a score below 0.
MASKED = {"FLOAT": np.float32(-1e30), "FLOAT16": np.float16(-3e4)}

Attend = Callable[[int, str, str, str], str]  # of a layer: q, k, v [tokens, heads * head_dim]


def standard(
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
    at = node("Unsqueeze", positions, constant([2]))
    masked = MASKED[form.computed]
    rope = {slid: angles(graph, c, form, at, slid) for slid in {False, c.sliding is not None}}
    near = kept
    if c.sliding:
        edge = node("Sub", own, constant(np.int64(c.sliding.window)))
        near = node("And", kept, node("Greater", seen, node("Unsqueeze", edge, constant([1]))))
    masks = {
        slid: node("Where", one, constant(masked * 0), constant(masked))
        for slid, one in {False: kept, c.sliding is not None: near}.items()
    }
    cap = c.scale("attn_logit_softcapping", 0)
    flat = constant([-1, c.heads * c.head_dim])

    def heads_apart(x: str, heads: int) -> str:
        """[tokens, heads * head_dim] to [batch, heads, sequence, head_dim]"""
        shape = node("Concat", node("Shape", ids), constant([heads, c.head_dim]), axis=0)
        return node("Transpose", node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def attend(layer: int, q: str, k: str, v: str) -> str:
        q, k, v = heads_apart(q, c.heads), heads_apart(k, c.kv_heads), heads_apart(v, c.kv_heads)
        slid = layer in c.with_window
        if layer not in c.without_rope:
            q, k = (node("RotaryEmbedding", one, *rope[slid]) for one in (q, k))
        if attention_mask:  # not by Attention's own inputs for the past: TensorRT takes none
            kv = zip((k, v), _pasts(layer), _presents(layer), strict=True)
            k, v = (graph.nodes_of("Concat", [past, x], [name], axis=2)[0] for x, past, name in kv)
        if cap:  # Attention's own is behind its mask
            y = _attended(graph, c, form, q, k, v, masks[slid], cap)
        else:
            y = node("Attention", q, k, v, masks[slid], scale=c.score_scale)
        return node("Reshape", node("Transpose", y, perm=[0, 2, 1, 3]), flat)

    return attend


def _attended(
    graph: Graph, c: ModelConfig, form: Form, q: str, k: str, v: str, mask: str, cap: float
) -> str:
    """Attention of [batch, heads, tokens, head_dim], whose scores are capped before they are masked."""
    node, constant = graph.node, graph.constant
    if c.heads > c.kv_heads:  # each KV head for the query heads that share it
        index = constant(np.repeat(np.arange(c.kv_heads), c.heads // c.kv_heads))
        k, v = (node("Gather", x, index, axis=1) for x in (k, v))
    q = node("Mul", q, number(graph, form, c.score_scale))
    scores = node("MatMul", q, node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = node("Add", capped(graph, form, scores, cap), mask)
    return node("MatMul", node("Softmax", scores, axis=-1), v)


def fused(graph: Graph, c: ModelConfig, form: Form, ids: str, attention_mask: str) -> Attend:
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
    at = node("Unsqueeze", every, constant([1]))
    rope = {slid: angles(graph, c, form, at, slid) for slid in {False, c.sliding is not None}}
    cap = c.scale("attn_logit_softcapping", 0)
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
        slid, turns = layer in c.with_window, layer not in c.without_rope
        more: dict[str, float] = {"local_window_size": c.sliding.window} if slid else {}
        more |= {"softcap": float(cap)} if cap else {}
        found = graph.nodes_of(
            "GroupQueryAttention",
            [*qkv, *_pasts(layer), last, total, *(rope[slid] if turns else [])],
            [f"attention.{layer}", *_presents(layer)], MICROSOFT, num_heads=c.heads, **more,
            kv_num_heads=c.kv_heads, scale=c.score_scale, do_rotary=int(turns),
        )  # fmt: skip
        return node("Reshape", found[0], flat)

    return attend


def _pasts(layer: int) -> list[str]:
    return [f"{PAST}.{layer}.key", f"{PAST}.{layer}.value"]


def _presents(layer: int) -> list[str]:
    return [f"{PRESENT}.{layer}.key", f"{PRESENT}.{layer}.value"]


def angles(
    graph: Graph, c: ModelConfig, form: Form, positions: str, slid: bool = False
) -> tuple[str, str]:
    """cos and sin of int64 positions [..., 1]: [..., head_dim / 2], computed in float32; `slid` of layers
    with a window."""
    per_token = graph.constant(frequencies(c, slid).astype(np.float32))
    angle = graph.node("Mul", graph.cast(positions, "FLOAT"), per_token)
    cos, sin = graph.node("Cos", angle), graph.node("Sin", angle)
    if form.computed == "FLOAT":
        return cos, sin
    return graph.cast(cos, form.computed), graph.cast(sin, form.computed)


def frequencies(c: ModelConfig, slid: bool = False) -> np.ndarray:
    """Radians per token, [head_dim / 2]; `slid` of layers with a window."""
    local = c.sliding.theta if c.sliding and slid else None
    found = 1 / (local or c.rope_theta) ** (np.arange(0, c.head_dim, 2) / c.head_dim)
    if c.rope is None or local:
        return found
    if isinstance(c.rope, LinearRope):
        return found / c.rope.factor
    return found / np.array(rope_freqs(c), np.float32)


def number(graph: Graph, form: Form, value: float) -> str:
    return graph.constant((np.float16 if form.computed == "FLOAT16" else np.float32)(value))


def capped(graph: Graph, form: Form, x: str, cap: float) -> str:
    """x within -cap and cap, by tanh; 0: as it is."""
    if not cap:
        return x
    limit = number(graph, form, cap)
    return graph.node("Mul", graph.node("Tanh", graph.node("Div", x, limit)), limit)
