"""A decoder with KV cache as an ONNX graph, in the names of optimum's exports.

Inputs: input_ids, attention_mask and position_ids, int64 [batch, sequence]; the mask is as long as past
and sequence together.  past_key_values.N.key and .value [batch, KV heads, past, head_dim].  Outputs:
logits, float32 [batch, sequence, vocabulary], and present.N.key and .value.
"""

import numpy as np

from ingot.formats.onnx.attention import PAST, PRESENT, Attend, capped, fused, number, standard
from ingot.formats.onnx.graph import OLD, OPSET, Graph
from ingot.formats.onnx.weights import Form, Layout, Weights
from ingot.model.config import ModelConfig

PORTABLE, FUSED, PREFILL = "portable", "fused", "prefill"
GRAPHS = {  # and the operators that attend
    PORTABLE: "standard operators only; batches may be padded on the left",
    FUSED: "com.microsoft's GroupQueryAttention; no padding on the left",
    PREFILL: "standard operators only; input_ids [1, sequence] alone, and no KV cache",
}
STEM = "model"
GRAPH = f"{STEM}.onnx"


def build(config: ModelConfig, form: Form, kind: str) -> tuple[bytes, Layout]:
    """The graph, and what lies where in its data files."""
    graph = Graph("decoder", opset_of(kind))
    weights = Weights(graph, config, form, STEM)
    batch = 1 if kind == PREFILL else "batch"
    ids = graph.input("input_ids", "INT64", [batch, "sequence"])
    if kind == PREFILL:
        attend = standard(graph, config, form, ids)
    else:
        mask = graph.input("attention_mask", "INT64", [batch, "total"])
        attend = (fused if kind == FUSED else standard)(graph, config, form, ids, mask)
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
    root = c.hidden**0.5 if c.family.root_embedding else 1
    x = _times(graph, weights, x, c.scale("embedding_scale", root))
    for layer in range(c.layers):
        weights.begin(f"layers.{layer}")
        at = f"model.layers.{layer}"
        y = _normed(graph, weights, c, x, at, "before_attention")
        heads = c.heads * c.head_dim, c.kv_heads * c.head_dim
        apart = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
        q, k, v = _parts(graph, weights, y, apart, f"{at}.self_attn.qkv_proj", (*heads, heads[1]))
        if "self_attn.q_norm" in c.family.layer:
            q = by_head(graph, weights, c, q, f"{at}.self_attn.q_norm", c.heads)
            k = by_head(graph, weights, c, k, f"{at}.self_attn.k_norm", c.kv_heads)
        y = weights.linear(attend(layer, q, k, v), f"{at}.self_attn.o_proj.weight")
        y = _normed(graph, weights, c, y, at, "behind_attention")
        x = graph.node("Add", x, _times(graph, weights, y, c.scale("residual_scale")))
        y = _normed(graph, weights, c, x, at, "before_mlp")
        apart = [f"{at}.mlp.{name}_proj" for name in ("gate", "up")]
        gate, up = _parts(graph, weights, y, apart, f"{at}.mlp.gate_up_proj", (c.ffn, c.ffn))
        y = graph.node("Mul", _activated(graph, weights, c, gate), up)
        y = weights.linear(y, f"{at}.mlp.down_proj.weight")
        y = _normed(graph, weights, c, y, at, "behind_mlp")
        x = graph.node("Add", x, _times(graph, weights, y, c.scale("residual_scale")))
    weights.begin("head")
    x = norm(graph, weights, c, x, "model.norm.weight")
    x = weights.linear(graph.node("Gather", x, rows, axis=0) if rows else x, weights.head)
    x = _times(graph, weights, x, 1 / c.scale("logit_scale"))
    return capped(graph, weights.form, x, c.scale("final_logit_softcapping", 0))


def _parts(
    graph: Graph, weights: Weights, x: str, apart: list[str], joined: str, rows: tuple[int, ...]
) -> list[str]:
    """x by each of the layers `apart`, or by the one that holds the rows of all, as its family has them."""
    if f"{joined}.weight" not in weights.shapes:
        return [weights.linear(x, f"{name}.weight") for name in apart]
    y = weights.linear(x, f"{joined}.weight")
    return graph.nodes_of("Split", [y, graph.constant([*rows])], len(rows), axis=-1)


def norms_of(c: ModelConfig) -> dict[str, str]:
    """Which norm of a layer stands where: before attention and feed-forward, or behind, or both."""
    behind = "post_feedforward_layernorm" in c.family.layer
    places = {
        "before_attention": "input_layernorm",
        "behind_attention": "post_attention_layernorm" if behind else "",
        "before_mlp": "pre_feedforward_layernorm" if behind else "post_attention_layernorm",
        "behind_mlp": "post_feedforward_layernorm",
    }
    return {place: name for place, name in places.items() if name in c.family.layer}


def _normed(graph: Graph, weights: Weights, c: ModelConfig, x: str, at: str, place: str) -> str:
    """x by the norm that its layer has there; without one as it is."""
    name = norms_of(c).get(place)
    return norm(graph, weights, c, x, f"{at}.{name}.weight") if name else x


def _times(graph: Graph, weights: Weights, x: str, scale: float) -> str:
    return x if scale == 1 else graph.node("Mul", x, number(graph, weights.form, scale))


def _activated(graph: Graph, weights: Weights, c: ModelConfig, x: str) -> str:
    """SiLU, or the GELU that tanh is near."""
    node = graph.node
    if c.family.activation == "silu":
        return node("Mul", x, node("Sigmoid", x))
    cube = _times(graph, weights, node("Mul", x, node("Mul", x, x)), 0.044715)
    bent = node("Tanh", _times(graph, weights, node("Add", x, cube), (2 / np.pi) ** 0.5))
    return node(
        "Mul", _times(graph, weights, x, 0.5), node("Add", bent, number(graph, weights.form, 1))
    )


def by_head(graph: Graph, weights: Weights, c: ModelConfig, x: str, source: str, heads: int) -> str:
    """A norm of each head of x [tokens, heads * head_dim], or of all at once."""
    if c.family.layer["self_attn.q_norm"].shape != ("head",):
        return norm(graph, weights, c, x, f"{source}.weight")
    x = graph.node("Reshape", x, graph.constant([-1, c.head_dim]))
    x = norm(graph, weights, c, x, f"{source}.weight")
    return graph.node("Reshape", x, graph.constant([-1, heads * c.head_dim]))


def norm(graph: Graph, weights: Weights, c: ModelConfig, x: str, source: str) -> str:
    weight = weights.vector(source)
    if c.family.norm_plus:
        weight = graph.node("Add", weight, number(graph, weights.form, c.family.norm_plus))
    if graph.opset >= OPSET:
        return graph.node("RMSNormalization", x, weight, axis=-1, epsilon=c.rms_eps)
    node, wide = graph.node, graph.cast(x, "FLOAT")
    mean = node("ReduceMean", node("Mul", wide, wide), axes=[-1], keepdims=1)
    root = node("Sqrt", node("Add", mean, graph.constant(np.float32(c.rms_eps))))
    return node("Mul", graph.cast(node("Div", wide, root), weights.form.computed), weight)
