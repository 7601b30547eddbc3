"""A Llama decoder as ONNX: token ids [1, n] to logits [1, n, vocabulary]; float16, no KV cache.

Opset 20.  Weights lie in a file of their own beside the graph, streamed from the checkpoint; norms
and softmax are computed in float32.
"""

import json
from pathlib import Path

import numpy as np

from ingot.architecture import llama
from ingot.architecture.config import ModelConfig
from ingot.checkpoint.files import Checkpoint
from ingot.checkpoint.rows import Rows
from ingot.tensors.dtypes import TYPES

OPSET, IR = 20, 10
GRAPH, DATA, SETTINGS = "model.onnx", "model.onnx.data", "config.json"
ALIGN = 64  # bytes; where each weight begins
MOST = 2048  # tokens, where the model's context is longer: the mask is a constant


class Graph:
    """Collects nodes; every method returns the name of a tensor."""

    def __init__(self):
        import onnx

        self.onnx, self.nodes, self.weights = onnx, [], []
        self.placed: list[tuple[llama.TensorSpec, int]] = []  # and where in the data file
        self.end = 0  # of the data file

    def node(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def weight(self, spec: llama.TensorSpec) -> str:
        """A tensor of the checkpoint, as float16, at the end of the data file."""
        start, size = -(-self.end // ALIGN) * ALIGN, spec.type.nbytes(spec.shape)
        self.placed.append((spec, start))
        self.end = start + size
        tensor = self.onnx.TensorProto(name=spec.name, data_type=self.onnx.TensorProto.FLOAT16)
        tensor.dims.extend(spec.shape)
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        place = {"location": DATA, "offset": start, "length": size}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return spec.name

    def linear(self, x: str, weight: str) -> str:
        """x [..., in] by a weight [out, in]."""
        return self.node("MatMul", x, self.node("Transpose", weight, perm=[1, 0]))

    def cast(self, x: str, kind: str) -> str:
        return self.node("Cast", x, to=getattr(self.onnx.TensorProto, kind))


def write(checkpoint: Checkpoint, config: ModelConfig, folder: Path) -> None:
    """The graph, its data and its settings in `folder`."""
    graph, placed, _ = build(config)
    with (folder / DATA).open("wb") as file, Rows(checkpoint, config, GRAPH) as rows:
        rows.check({spec.source: spec.shape for spec, _ in placed})
        for spec, offset in placed:
            file.write(bytes(offset - file.tell()))
            for _, _, read in rows.blocks(spec):
                file.write(read())
        rows.finish()
    (folder / GRAPH).write_bytes(graph)
    (folder / SETTINGS).write_text(settings(config))


def settings(config: ModelConfig) -> str:
    return json.dumps({"max_seq_len": longest(config)}) + "\n"


def longest(config: ModelConfig) -> int:
    """How many tokens the graph takes."""
    return min(config.context, MOST)


def build(config: ModelConfig) -> tuple[bytes, list[tuple[llama.TensorSpec, int]], int]:
    """The graph, where in the data file each of its weights lies, and how long that file is."""
    graph = Graph()
    shapes = {spec.source: spec.shape for spec in llama.specs(config, "f16") if spec.source}

    def weight(name: str) -> str:
        source = f"{name}.weight"
        return graph.weight(llama.TensorSpec(source, source, shapes[source], TYPES["F16"]))

    logits = _decoder(graph, config, longest(config), weight)
    helper, kind = graph.onnx.helper, graph.onnx.TensorProto
    ids = helper.make_tensor_value_info("input_ids", kind.INT64, [1, "n"])
    out = helper.make_tensor_value_info(logits, kind.FLOAT, [1, "n", config.vocab])
    body = helper.make_graph(graph.nodes, "decoder", [ids], [out], graph.weights)
    model = helper.make_model(
        body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="ingot"
    )
    return model.SerializeToString(deterministic=True), graph.placed, graph.end


def _decoder(graph: Graph, c: ModelConfig, longest: int, weight) -> str:
    node, constant = graph.node, graph.constant
    zero, one = constant(np.array([0])), constant(np.array([1]))
    epsilon = constant(np.float32(c.rms_eps))
    count = node("Slice", node("Shape", "input_ids"), one, constant(np.array([2])))  # [n]
    angles = np.outer(np.arange(longest), frequencies(c))
    cos, sin = (
        node("Slice", constant(np.tile(f(angles), 2).astype(np.float16)), zero, count, zero)
        for f in (np.cos, np.sin)
    )
    mask = np.triu(np.full((longest, longest), -np.inf, np.float32), 1)
    mask = node("Slice", constant(mask), zero, count, zero)
    mask = node("Slice", mask, zero, count, one)
    scale = constant(np.float16(c.head_dim**-0.5))

    def norm(x: str, name: str) -> str:
        wide = graph.cast(x, "FLOAT")
        mean = node("ReduceMean", node("Mul", wide, wide), constant(np.array([-1])), keepdims=1)
        wide = node("Div", wide, node("Sqrt", node("Add", mean, epsilon)))
        return node("Mul", graph.cast(wide, "FLOAT16"), weight(name))

    def heads(x: str, count: int) -> str:
        """[1, n, count * head_dim] -> [1, count, n, head_dim]"""
        x = node("Reshape", x, constant(np.array([1, -1, count, c.head_dim])))
        return node("Transpose", x, perm=[0, 2, 1, 3])

    def turned(x: str) -> str:
        half, end = constant(np.array([c.head_dim // 2])), constant(np.array([c.head_dim]))
        last = constant(np.array([3]))
        first, second = node("Slice", x, zero, half, last), node("Slice", x, half, end, last)
        other = node("Concat", node("Neg", second), first, axis=-1)
        return node("Add", node("Mul", x, cos), node("Mul", other, sin))

    def repeated(x: str) -> str:
        """Each KV head for the query heads that share it."""
        index = np.repeat(np.arange(c.kv_heads), c.heads // c.kv_heads)
        return node("Gather", x, constant(index), axis=1) if c.heads > c.kv_heads else x

    embedding = weight("model.embed_tokens")
    x = node("Gather", embedding, "input_ids", axis=0)
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (graph.linear(y, weight(f"{at}.self_attn.{name}_proj")) for name in "qkv")
        q = node("Mul", turned(heads(q, c.heads)), scale)
        k = repeated(turned(heads(k, c.kv_heads)))
        v = repeated(heads(v, c.kv_heads))
        scores = node("MatMul", q, node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = node("Add", graph.cast(scores, "FLOAT"), mask)
        shares = graph.cast(node("Softmax", scores, axis=-1), "FLOAT16")
        y = node("Transpose", node("MatMul", shares, v), perm=[0, 2, 1, 3])
        y = node("Reshape", y, constant(np.array([1, -1, c.heads * c.head_dim])))
        x = node("Add", x, graph.linear(y, weight(f"{at}.self_attn.o_proj")))
        y = norm(x, f"{at}.post_attention_layernorm")
        gate = graph.linear(y, weight(f"{at}.mlp.gate_proj"))
        gate = node("Mul", gate, node("Sigmoid", gate))
        y = node("Mul", gate, graph.linear(y, weight(f"{at}.mlp.up_proj")))
        x = node("Add", x, graph.linear(y, weight(f"{at}.mlp.down_proj")))
    x = norm(x, "model.norm")
    head = embedding if c.tied else weight("lm_head")
    return graph.cast(graph.linear(x, head), "FLOAT")


def frequencies(c: ModelConfig) -> np.ndarray:
    """Radians per token, [head_dim / 2]."""
    found = 1 / c.rope_theta ** (np.arange(0, c.head_dim, 2) / c.head_dim)
    if c.rope is None:
        return found
    return found / np.array(llama.rope_freqs(c), np.float32)
