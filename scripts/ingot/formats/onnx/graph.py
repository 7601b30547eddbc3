"""An ONNX graph while it is put together: nodes, constants, and tensors that lie in files beside it."""

from collections.abc import Sequence

import numpy as np

OPSET = 23  # the first that has Attention, RotaryEmbedding and RMSNormalization
OLD = 17  # the first that has all else
IR = 8  # of the file format: nothing here needs a later version, which older runtimes refuse
MICROSOFT = "com.microsoft"
PRODUCER = "ingot"


class Graph:
    """Every method returns the name of a tensor; types are those of onnx.TensorProto, by name."""

    def __init__(self, name: str, opset: int = OPSET):
        import onnx

        self.onnx, self.name = onnx, name
        self.nodes, self.inputs, self.outputs = [], [], []
        self.tensors, self.constants = {}, {}  # by name; names by content
        self.opset, self.domains = opset, {"": opset}

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes) -> str:
        """A node of one output."""
        return self.nodes_of(kind, inputs, 1, domain, **attributes)[0]

    def nodes_of(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: int | list[str],
        domain: str = "",
        at: str = "",
        **attributes,
    ) -> list[str]:
        """A node, named `at`, of several outputs, which may bring their own names."""
        name = at or f"n{len(self.nodes)}"
        if isinstance(outputs, int):
            outputs = [f"{name}_{number}" if number else name for number in range(outputs)]
        if domain:
            self.domains[domain] = 1
        made = self.onnx.helper.make_node(
            kind, inputs, outputs, name=name, domain=domain, **attributes
        )
        self.nodes.append(made)
        return outputs

    def constant(self, values) -> str:
        """A small tensor in the graph itself; equal ones are one."""
        values = np.asarray(values)  # not contiguous: that would make a vector of a scalar
        key = values.dtype.str, values.shape, values.tobytes()
        name = self.constants.setdefault(key, f"c{len(self.constants)}")
        self.tensors[name] = self.onnx.numpy_helper.from_array(values, name)
        return name

    def external(
        self, name: str, kind: str, shape: Sequence[int], file: str, place: int, size: int
    ) -> str:
        """A tensor of `size` bytes at byte `place` of `file`."""
        tensor = self.onnx.TensorProto(name=name, data_type=self.type(kind))
        tensor.dims.extend(shape)
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        for key, value in {"location": file, "offset": place, "length": size}.items():
            tensor.external_data.add(key=key, value=str(value))
        self.tensors[name] = tensor
        return name

    def cast(self, x: str, kind: str) -> str:
        return self.node("Cast", x, to=self.type(kind))

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self.type(kind), shape))
        return name

    def output(self, name: str, kind: str, shape: Sequence[int | str]) -> None:
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, self.type(kind), shape))

    def type(self, kind: str) -> int:
        return getattr(self.onnx.TensorProto, kind)

    def content(self) -> bytes:
        """The same bytes whenever the nodes are the same."""
        helper = self.onnx.helper
        body = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, list(self.tensors.values())
        )
        opsets = [helper.make_opsetid(domain, number) for domain, number in self.domains.items()]
        model = helper.make_model(body, opset_imports=opsets, ir_version=IR, producer_name=PRODUCER)
        return model.SerializeToString(deterministic=True)
