"""The weights of an ONNX graph: how each is stored, in which data file, and what multiplies by it.

All keep the checkpoint's own [out, in] order, so that nothing is ever transposed.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated

import numpy as np

from ingot.formats.onnx.graph import MICROSOFT, Graph
from ingot.model import features
from ingot.model.config import ModelConfig
from ingot.model.specs import specs_of

# no rope but the usual one, Llama 3.1's and the linear
CAN = (
    *features.BIASES, "own_gguf", "qkv_bias", "qk_norm", "linear", "rope_skips", "windows", "scales",
    "norms_behind", "joined", features.ADAPTER,
)  # fmt: skip
ALIGN = 64  # bytes; where each tensor begins
MOST = 2 << 30  # bytes of a data file; a larger tensor has one of its own
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# How a tensor is stored: bytes per value, and its ONNX type.
F32, F16 = "F32", "F16"
BLOCKS = "BLOCKS"  # uint8 around 128, a float32 scale per block of a row
ROWS = "ROWS"  # int8, a float32 scale per row
KINDS = {F32: (4, "FLOAT"), F16: (2, "FLOAT16"), BLOCKS: (1, "UINT8"), ROWS: (1, "INT8")}
SCALE = "_scale"
# Of int8 in rows.  Where a CPU has no VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits:
# 255 * 127 twice is cut off there, and logits are wrong by 3 %; 255 * 63 twice is not.
MOST_OF = {"dynamic": 63, "dequantized": 127}

ACCURACY_LEVEL = 4  # activations as int8: the one level of 8-bit MatMulNBits with a fast kernel
# What multiplies by int8: MatMulNBits, DynamicQuantizeLinear and QGemm, or DequantizeLinear and Gemm.
INT8 = ("blocks", "dynamic", "dequantized")
BLOCKS_OF = (16, 32, 64, 128, 256)  # that MatMulNBits takes


@dataclass(frozen=True)
class Form:
    """What is written: `dtype` fp32, fp16 or int8, and for int8 one of INT8.

    `float_layers` are linear layers that stay float32 in int8, such as lm_head or mlp.down_proj.
    """

    dtype: Annotated[str, "of the weights", ("fp32", "fp16", "int8")] = "fp32"
    int8: Annotated[str, "its way", INT8[:2]] = "blocks"
    block: Annotated[int, "values that share a scale", BLOCKS_OF] = 32
    float_layers: Annotated[tuple[str, ...], "that int8 leaves in float32"] = ()

    @property
    def computed(self) -> str:
        """The ONNX type that is computed in."""
        return "FLOAT16" if self.dtype == "fp16" else "FLOAT"

    @property
    def float(self) -> str:
        """How a tensor is stored that is not quantised."""
        return F16 if self.dtype == "fp16" else F32

    def stored(self, source: str) -> str:
        """How the matrix `source` of the checkpoint is stored."""
        layer = source.removesuffix(".weight")
        if self.dtype != "int8" or any(
            layer == name or layer.endswith(f".{name}") for name in self.float_layers
        ):
            return self.float
        return BLOCKS if self.int8 == "blocks" else ROWS

    def nbytes(self, source: str, shape: tuple[int, ...]) -> int:
        """Of a tensor and its scales, in the data files."""
        kind = self.stored(source) if len(shape) > 1 else self.float
        scales = {BLOCKS: prod(shape) // self.block, ROWS: shape[0]}
        return prod(shape) * KINDS[kind][0] + 4 * scales.get(kind, 0)


@dataclass(frozen=True)
class Stored:
    """One tensor of the checkpoint, `source`, in the data files: `kind` is one of KINDS.

    Its values begin at byte `start` of `file`; its scales, `per_row` of them, at byte `scales_start`
    of `scales_file`.
    """

    source: str
    shape: tuple[int, ...]
    kind: str
    file: str
    start: int
    most: int = 0  # of the numbers in ROWS
    per_row: int = 0
    scales_file: str = ""
    scales_start: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * KINDS[self.kind][0]


@dataclass
class Layout:
    """What lies where in the data files of a graph."""

    stored: list[Stored] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # bytes, by file

    def place(self, file: str, nbytes: int) -> int:
        start = -(-self.sizes.get(file, 0) // ALIGN) * ALIGN
        self.sizes[file] = start + nbytes
        return start


class Weights:
    """The weights that a graph uses, each placed in a data file at its first use.

    Data files end where a layer ends, so that in the store a fine-tune costs the layers it changed.
    """

    def __init__(self, graph: Graph, config: ModelConfig, form: Form, stem: str):
        if config.tied and "lm_head" in form.float_layers:  # which is the embedding
            form = replace(form, float_layers=(*form.float_layers, "model.embed_tokens"))
        self.graph, self.form, self.stem = graph, form, stem
        specs = specs_of(config, "f32")
        self.shapes = {spec.source: spec.shape for spec in specs if spec.source}
        self.head = EMBEDDING if config.tied else HEAD
        self.layout, self.names = Layout(), set()
        self.file = self.scales = ""

    def begin(self, part: str) -> None:
        """What follows belongs to `part` of the model: embedding, layers.N or head."""
        self.part, self.parts = part, 0
        self.file, self.scales = f"{self.stem}.{part}.data", f"{self.stem}.{part}.scales"

    def linear(self, x: str, source: str) -> str:
        """x [tokens, in] by the weight `source` [out, in], with its bias, if it has one."""
        graph, kind = self.graph, self._place(source, self.form.stored(source))
        if kind == BLOCKS:
            rows, columns = self.shapes[source]
            y = graph.node(
                "MatMulNBits", x, source, source + SCALE, domain=MICROSOFT, N=rows, K=columns,
                bits=8, block_size=self.form.block, accuracy_level=ACCURACY_LEVEL,
            )  # fmt: skip
        elif kind == ROWS and self.form.int8 == "dynamic":
            wide = graph.nodes_of("DynamicQuantizeLinear", [x], 3)
            zeros = graph.constant(np.zeros(self.shapes[source][0], np.int8))
            y = graph.node(
                "QGemm", *wide, source, source + SCALE, zeros, domain=MICROSOFT, transB=1
            )
        else:
            y = graph.node("Gemm", x, self._float(source, kind), transB=1)
        bias = source.removesuffix("weight") + "bias"
        return graph.node("Add", y, self.vector(bias)) if bias in self.shapes else y

    def embedded(self, ids: str) -> str:
        """The rows of the embedding for int64 `ids`: [tokens, hidden]."""
        graph, kind = self.graph, self._place(EMBEDDING, self.form.stored(EMBEDDING))
        dequantized = self.form.int8 == "dequantized"
        table = self._float(EMBEDDING, kind) if dequantized else EMBEDDING
        x = graph.node("Gather", table, ids, axis=0)
        if kind in (BLOCKS, ROWS) and not dequantized:
            x = graph.cast(x, "FLOAT")
            if kind == BLOCKS:
                x = graph.node("Sub", x, graph.constant(np.float32(128)))
            scale = graph.node("Gather", EMBEDDING + SCALE, ids, axis=0)
            x = graph.node("Mul", x, graph.node("Unsqueeze", scale, graph.constant([-1])))
        return graph.node("Reshape", x, graph.constant([-1, self.shapes[EMBEDDING][1]]))

    def vector(self, source: str) -> str:
        self._place(source, self.form.float)
        return source

    def _float(self, source: str, kind: str) -> str:
        if kind != ROWS:
            return source
        return self.graph.node("DequantizeLinear", source, source + SCALE, axis=0)

    def _place(self, source: str, kind: str) -> str:
        """How `source` is stored, from its first use on."""
        if source in self.names:
            return kind
        self.names.add(source)
        shape, (size, type_) = self.shapes[source], KINDS[kind]
        nbytes = prod(shape) * size
        if self.layout.sizes.get(self.file, 0) + nbytes > MOST and self.file in self.layout.sizes:
            self.parts += 1
            self.file = f"{self.stem}.{self.part}.{self.parts}.data"
        start = self.layout.place(self.file, nbytes)
        tensor = Stored(source, shape, kind, self.file, start)
        if kind in (BLOCKS, ROWS):
            per_row = shape[1] // self.form.block if kind == BLOCKS else 1
            scales = (shape[0], per_row) if kind == BLOCKS else shape[:1]
            place = self.layout.place(self.scales, 4 * prod(scales))
            tensor = Stored(
                source, shape, kind, self.file, start, MOST_OF.get(self.form.int8, 0), per_row,
                self.scales, place,
            )  # fmt: skip
            self.graph.external(
                source + SCALE, "FLOAT", scales, self.scales, place, 4 * prod(scales)
            )
        if kind == BLOCKS:
            shape = (shape[0], per_row, self.form.block)
        self.graph.external(source, type_, shape, self.file, start, nbytes)
        self.layout.stored.append(tensor)
        return kind
