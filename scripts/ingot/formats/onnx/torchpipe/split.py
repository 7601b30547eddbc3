"""A decoder cut where tokens meet, for torchpipe: all weights in one graph, attention in others.

The first graph is token-major, so that tokens of several requests go through it in one batch; each of its
attentions is one node, CustomTorchOps::TorchPlugin, which the server replaces by the others.  Two layouts:
`rows` is that of torchpipe's examples/llama2 of 2024, `heads` of 2026.  Any number of KV heads, and any
head_dim: upstream's own exports take 32 heads only.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.refused import Refused
from ingot.base.sealed import Contents
from ingot.formats.onnx.decoder import trunk
from ingot.formats.onnx.graph import Graph
from ingot.formats.onnx.weights import CAN as CAN_ALL
from ingot.formats.onnx.weights import Form, Layout, Weights
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.config import ModelConfig

# one graph attends, in each layer
CAN = tuple(word for word in CAN_ALL if word not in ("rope_skips", "windows"))
DOMAIN, PLUGIN = "CustomTorchOps", "TorchPlugin"
OPSET = 17  # as upstream's: TensorRT 10.5 knows no newer operators
ROWS, HEADS = "rows", "heads"
NAMES = {  # of the graphs, as upstream's configurations name them
    ROWS: ("batchful", "batchless_prefill", "batchless_decode"),
    HEADS: ("batchable", "batchless_prefilling", "batchless_decoding"),
}
EMBEDDING = "embed_tokens"


@dataclass(frozen=True)
class Split:
    """What is asked for: `dtype` fp16 or fp32, of the first `layers` layers (None: all), in a layout."""

    dtype: Annotated[str, "of the graphs", ("fp16", "fp32")] = "fp16"
    layers: Annotated[int | None, "the first so many only, to try it out"] = None
    layout: Annotated[str, "of a batch", tuple(NAMES)] = ROWS

    @property
    def form(self) -> Form:
        return Form(self.dtype)

    def cut(self, source: object, config: ModelConfig) -> ModelConfig:
        """The model that is exported.  Refused when it has fewer layers than asked for."""
        if (self.layers or 0) > config.layers:
            raise Refused(
                f"{source}: has {config.layers} layers, expected {self.layers} or more for "
                "onnx.torchpipe.layers; lower it"
            )
        return replace(config, layers=self.layers or config.layers)


def contents(checkpoint: Checkpoint, tokenizer: list[Path]) -> Contents:
    """The checkpoint's own small files beside the graphs."""
    return {name_of(path): path for path in tokenizer} | {"config.json": checkpoint["config.json"]}


def graphs(config: ModelConfig, split: Split) -> tuple[dict[str, bytes], Layout]:
    """The three graphs by file name, and what lies in the data files of the first."""
    whole, prefill, decode = NAMES[split.layout]
    content, layout = _whole(config, split, whole)
    return {
        f"{whole}.onnx": content,
        f"{prefill}.onnx": _attention(config, split, prefill, past=False),
        f"{decode}.onnx": _attention(config, split, decode, past=True),
    }, layout


def _whole(c: ModelConfig, split: Split, name: str) -> tuple[bytes, Layout]:
    """inputs_embeds [seq_len, hidden] to logits [1, vocabulary] of the last row, or of index_select's."""
    graph = Graph(name, OPSET)
    weights = Weights(graph, c, split.form, name)
    kind, constant = split.form.computed, graph.constant
    x = graph.input("inputs_embeds", kind, ["seq_len", c.hidden])
    count: int | str = 1
    if split.layout == HEADS:
        count = "request_size"
        rows = graph.input("index_select", "INT64", [count])
    else:
        rows = constant([-1])

    def attend(layer: int, q: str, k: str, v: str) -> str:
        attributes = {"layer_idx": layer}
        qkv = [q, k, v]
        if split.layout == HEADS:
            attributes = {
                "params": f"layer_idx={layer};num_output=1;num_input=3;dtype={split.dtype}"
            }
            shapes = [[-1, n, c.head_dim] for n in (c.heads, c.kv_heads, c.kv_heads)]
            qkv = [graph.node("Reshape", x, constant(s)) for x, s in zip(qkv, shapes, strict=True)]
        at = f"{PLUGIN}_{layer}"
        (y,) = graph.nodes_of(PLUGIN, qkv, [f"attention.{layer}"], DOMAIN, at, **attributes)
        if split.layout == HEADS:
            y = graph.node("Reshape", y, constant([-1, c.heads * c.head_dim]))
        return y

    logits = trunk(graph, weights, c, x, attend, rows)
    graph.nodes_of("Identity", [logits], ["logits"])
    graph.output("logits", kind, [count, c.vocab])
    return graph.content(), weights.layout


def _attention(c: ModelConfig, split: Split, name: str, past: bool) -> bytes:
    """Rope and attention of one request in one layer; the same for all layers.

    query_states [1, n, heads * head_dim], key_states and value_states [1, n, KV heads * head_dim], cos
    and sin [1, n, head_dim], attention_mask [1, 1, n, total], which is added to the scores.
    """
    graph = Graph(name, OPSET)
    node, constant, kind = graph.node, graph.constant, split.form.computed
    n: int | str = 1 if past else "seq_len"
    total = "q_len_with_past" if past else n
    heads = {"query_states": c.heads, "key_states": c.kv_heads, "value_states": c.kv_heads}
    for key, count in heads.items():
        graph.input(key, kind, [1, n, count * c.head_dim])
    for key in ("cos", "sin"):
        graph.input(key, kind, [1, n, c.head_dim])
    graph.input("attention_mask", kind, [1, 1, n, total])
    q, k, v = (
        node(
            "Transpose", node("Reshape", x, constant([1, -1, count, c.head_dim])), perm=[0, 2, 1, 3]
        )
        for x, count in heads.items()
    )
    cos, sin = (node("Unsqueeze", x, constant([1])) for x in ("cos", "sin"))
    q, k = (rotated(graph, c, x, cos, sin) for x in (q, k))
    shape = [1, c.kv_heads, total, c.head_dim]
    if past:
        for key in ("past_key", "past_value"):
            graph.input(key, kind, [1, c.kv_heads, "past_len", c.head_dim])
        k, v = node("Concat", "past_key", k, axis=2), node("Concat", "past_value", v, axis=2)
    kept = [k, v]
    if split.layout == HEADS and not past:
        kept = [node("Transpose", x, perm=[0, 2, 1, 3]) for x in kept]
        shape = [1, total, c.kv_heads, c.head_dim]
    for x, key in zip(kept, ("past_key_output", "past_value_output"), strict=True):
        graph.nodes_of("Identity", [x], [key])
    index = constant(np.repeat(np.arange(c.kv_heads), c.heads // c.kv_heads))
    if c.heads > c.kv_heads:  # each KV head for the query heads that share it
        k, v = (node("Gather", x, index, axis=1) for x in (k, v))
    scale = constant(np.array(c.score_scale, np.float16 if kind == "FLOAT16" else np.float32))
    scores = node("MatMul", node("Mul", q, scale), node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = graph.cast(node("Add", scores, "attention_mask"), "FLOAT")
    y = node("MatMul", graph.cast(node("Softmax", scores, axis=-1), kind), v)
    y = node("Transpose", y, perm=[0, 2, 1, 3])
    flat = constant([1, -1, c.heads * c.head_dim])
    graph.nodes_of("Reshape", [y, flat], ["attn_output"])
    graph.output("attn_output", kind, [1, n, c.heads * c.head_dim])
    for key in ("past_key_output", "past_value_output"):
        graph.output(key, kind, shape)
    return graph.content()


def rotated(graph: Graph, c: ModelConfig, x: str, cos: str, sin: str) -> str:
    """x [..., n, head_dim] turned by its positions, the halves of a head being the pairs."""
    zero, half = graph.constant([0]), graph.constant([c.head_dim // 2])
    end, last = graph.constant([c.head_dim]), graph.constant([-1])
    first = graph.node("Slice", x, zero, half, last)
    second = graph.node("Slice", x, half, end, last)
    other = graph.node("Concat", graph.node("Neg", second), first, axis=-1)
    return graph.node("Add", graph.node("Mul", x, cos), graph.node("Mul", other, sin))
