"""The schemes of compressed-tensors that Ingot offers: what each stores, and says of itself.

SCHEMES need no text; CALIBRATED do, and llm-compressor writes them.

Source: compressed-tensors 0.19, quantization/quant_scheme.py and compressors/.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ingot.model.checkpoint.quantised import codes
from ingot.model.checkpoint.quantised.blocks import Part, Shape
from ingot.model.tensors import few_bits

VERSION = "0.19.0"  # of compressed-tensors, whose format this is
FLOAT32, STORED_TO = "float32", "stored"  # what a quotient is rounded to
E4M3, BYTE, INT8, PACKED, COUNT = "F8_E4M3", "U8", "I8", "I32", "I64"  # safetensors' words


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One row."""

    preset: str  # compressed-tensors' name for it
    format: str
    weights: dict[str, Any]
    activations: dict[str, Any] | None  # rounded while it is served; None: they are not
    parts: Callable  # (shape of a weight, dtype) -> codes, scales, others: list[Part]
    codes: Callable | None = None  # one of codes.py; None: llm-compressor's
    like: str = ""  # of those that read a text: the scheme without one that servers compute as
    divides: int = 1  # the columns
    rows: int = 1  # that share a scale
    of_sets: bool = False  # one more scale, of all layers that a server joins

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """`quantization_config` of config.json."""
        group = {
            "format": self.format,
            "input_activations": self.activations,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": self.weights,
        }
        return {
            "config_groups": {"group_0": group},
            "format": self.format,
            "ignore": ignored,
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "version": VERSION,
        }


def _said(kind: str, bits: int, strategy: str, **more) -> dict[str, Any]:
    """compressed-tensors' words for how a tensor is quantised."""
    return {
        "dynamic": False,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": True,
        "type": kind,
        **more,
    }


# What is stored


def _by_rows(kind: str) -> Callable[[Shape, str], list[Part]]:
    return lambda shape, stored: [
        ("weight", kind, shape), ("weight_scale", stored, (shape[0], 1)),
    ]  # fmt: skip


def _by_blocks(shape: Shape, stored: str) -> list[Part]:
    return [
        ("weight", E4M3, shape), ("weight_scale", stored, tuple(-(-n // 128) for n in shape)),
    ]  # fmt: skip


def _by_groups(shape: Shape, stored: str) -> list[Part]:
    rows, columns = shape
    return [
        ("weight_packed", PACKED, (rows, columns // 8)),
        ("weight_scale", stored, (rows, columns // 128)),
        ("weight_shape", COUNT, (2,)),
    ]


def _by_pairs(kind: str, size: int, of_sets: bool = False) -> Callable[[Shape, str], list[Part]]:
    def parts(shape: Shape, stored: str) -> list[Part]:
        rows, columns = shape
        found: list[Part] = [
            ("weight_packed", BYTE, (rows, columns // 2)),
            ("weight_scale", kind, (rows, columns // size)),
        ]
        return found + ([("weight_global_scale", "F32", (1,))] if of_sets else [])

    return parts


SCHEMES = {
    "fp8": Scheme(
        preset="FP8_DYNAMIC",
        format="float-quantized",
        weights=_said("float", 8, "channel"),
        activations=_said("float", 8, "token", dynamic=True),
        codes=codes.of_rows(few_bits.e4m3, 448),
        parts=_by_rows(E4M3),
    ),
    "fp8_block": Scheme(
        preset="FP8_BLOCK",
        format="float-quantized",
        weights=_said("float", 8, "block", block_structure=[128, 128]),
        activations=_said("float", 8, "group", group_size=128, dynamic=True),
        codes=codes.fp8_blocks,
        parts=_by_blocks,
        divides=128,
        rows=128,
    ),
    "w8a8": Scheme(
        preset="W8A8",
        format="int-quantized",
        weights=_said("int", 8, "channel"),
        activations=_said("int", 8, "token", dynamic=True),
        codes=codes.of_rows(codes.int8, 127.5),
        parts=_by_rows(INT8),
    ),
    "w4a16": Scheme(
        preset="W4A16",
        format="pack-quantized",
        weights=_said("int", 4, "group", group_size=128),
        activations=None,
        codes=codes.int4_groups,
        parts=_by_groups,
        divides=128,
    ),
    "mxfp4": Scheme(
        preset="MXFP4A16",
        format="mxfp4-pack-quantized",
        weights=_said("float", 4, "group", group_size=32, scale_dtype="torch.uint8"),
        activations=None,
        codes=codes.mxfp4,
        parts=_by_pairs(BYTE, 32),
        divides=32,
    ),
    "nvfp4": Scheme(
        preset="NVFP4A16",
        format="nvfp4-pack-quantized",
        weights=_said("float", 4, "tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"),
        activations=None,
        codes=codes.nvfp4,
        parts=_by_pairs(E4M3, 16, of_sets=True),
        divides=16,
        of_sets=True,
    ),
}


def _with(parts: Callable, *more: tuple[str, str]) -> Callable:
    """The parts of another scheme, and numbers of what a layer is given."""
    return lambda shape, stored: [
        *parts(shape, stored), *((name, kind or stored, (1,)) for name, kind in more)
    ]  # fmt: skip


def _by_tensor(shape: Shape, stored: str) -> list[Part]:
    return [("weight", E4M3, shape), ("weight_scale", stored, (1,))]


CALIBRATED = {
    "fp8_static": Scheme(
        preset="FP8",
        format="float-quantized",
        weights=_said("float", 8, "tensor"),
        activations=_said("float", 8, "tensor"),
        parts=_with(_by_tensor, ("input_scale", "")),
        like="fp8",
    ),
    "w8a8_gptq": replace(SCHEMES["w8a8"], codes=None, like="w8a8"),
    "w4a16_gptq": replace(SCHEMES["w4a16"], codes=None, like="w4a16"),
    "w4a16_awq": replace(SCHEMES["w4a16"], codes=None, like="w4a16"),
    "nvfp4_a4": replace(
        SCHEMES["nvfp4"],
        preset="NVFP4",
        activations=SCHEMES["nvfp4"].weights | {"dynamic": "local"},
        parts=_with(SCHEMES["nvfp4"].parts, ("input_global_scale", "F32")),
        codes=None,
        like="nvfp4",
    ),
}
ALL = SCHEMES | CALIBRATED


def named(said: dict[str, Any]) -> str | None:
    """The scheme that a `quantization_config` of ours says; of those that say the same, the first."""
    found = (
        name
        for name, one in ALL.items()
        if one.config([])["config_groups"] == said.get("config_groups")
    )
    return next(found, None)
