"""The split model put together again: the plugin's node is given the other graph as its body.

Then ONNX Runtime runs it, token by token of several requests at once, as torchpipe would on a GPU.
"""

from pathlib import Path

import numpy as np

from ingot.formats.onnx.attention import frequencies
from ingot.formats.onnx.torchpipe.split import DOMAIN, HEADS, NAMES, OPSET, PLUGIN, Split
from ingot.model.config import ModelConfig

ROWS = "index_select"  # of the tokens whose logits are asked for
MASKED = {"fp32": -1e30, "fp16": -3e4}


class Attended:
    def __init__(self, folder: Path, config: ModelConfig, split: Split):
        import onnx
        import onnxruntime

        self.config = config
        self.dtype = np.float16 if split.dtype == "fp16" else np.float32
        self.masked = self.dtype(MASKED[split.dtype])
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        whole, prefill, _ = (
            onnx.load(folder / f"{name}.onnx", load_external_data=False)
            for name in NAMES[split.layout]
        )
        _join(whole, prefill, config, split)
        self.session = onnxruntime.InferenceSession(
            whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def logits(self, embedding: np.ndarray, requests: list[list[int]]) -> list[np.ndarray]:
        """Of requests packed one behind the other, each attending to itself: [tokens, vocabulary] each."""
        lengths = [len(ids) for ids in requests]
        total, mask = sum(lengths), packed_mask(lengths, self.masked)
        positions = np.concatenate([np.arange(length) for length in lengths])
        angles = np.tile(np.outer(positions, frequencies(self.config)), 2).astype(np.float32)
        found = self.session.run(
            ["logits"],
            {
                "inputs_embeds": embedding[np.concatenate(requests)],
                ROWS: np.arange(total),
                "cos": np.cos(angles)[None].astype(self.dtype),
                "sin": np.sin(angles)[None].astype(self.dtype),
                "attention_mask": mask[None, None],
            },
        )[0]
        return np.split(found.astype(np.float32), np.cumsum(lengths)[:-1])


def packed_mask(lengths: list[int], masked: np.generic) -> np.ndarray:
    """What is added to the scores of requests one behind the other: each token sees its own before it."""
    mask = np.full((sum(lengths), sum(lengths)), masked)
    for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        inside = slice(start, start + length)
        mask[inside, inside] = np.triu(mask[inside, inside], 1)
    return mask


def _join(whole, prefill, c: ModelConfig, split: Split) -> None:
    """Make `whole` runnable: `prefill` is the plugin's body, and its inputs are the model's."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto
    more = ["cos", "sin", "attention_mask"]
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in prefill.graph.initializer
    ]
    ends = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}
    states = ("query_states", "key_states", "value_states")
    for (name, heads), state in zip(ends.items(), states, strict=True):
        nodes += _reshape(helper, name, state, [1, -1, heads * c.head_dim])
    nodes += prefill.graph.node
    flat = [-1, c.heads, c.head_dim] if split.layout == HEADS else [-1, c.heads * c.head_dim]
    nodes += _reshape(helper, "attn_output", "o", flat)
    opsets = [helper.make_opsetid("", OPSET)]
    body = helper.make_function(DOMAIN, PLUGIN, [*ends, *more], ["o"], nodes, opsets)
    whole.functions.append(body)
    for node in whole.graph.node:
        if node.op_type == PLUGIN:
            node.input.extend(more)
            del node.attribute[:]
    inputs = [value for value in prefill.graph.input if value.name in more]
    whole.graph.input.extend(inputs)
    if split.layout != HEADS:  # it gives the last row: ask for all
        (last,) = (node for node in whole.graph.node if node.op_type == "Gather")
        last.input[1] = ROWS
        whole.graph.input.append(helper.make_tensor_value_info(ROWS, kind.INT64, ["rows"]))
        whole.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"


def _reshape(helper, source: str, target: str, shape: list[int]) -> list:
    size = helper.make_node("Constant", [], [f"{target}_shape"], value_ints=shape)
    return [size, helper.make_node("Reshape", [source, f"{target}_shape"], [target])]
