"""What a quantised checkpoint's weights take, by config.json alone."""

import functools
from math import prod

from ingot.model.checkpoint.quantised.schemes import ALL
from ingot.model.checkpoint.quantised.write import linear
from ingot.model.config import ModelConfig
from ingot.model.specs import specs_of
from ingot.model.tensors.dtypes import FLOATS, STORED


def stored(dtype: str) -> str:
    """A catalogue's dtype in safetensors' words; where it is none of a checkpoint's, the usual one."""
    return dtype.upper() if dtype.upper() in FLOATS else "BF16"


def of_layer(scheme: str, shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one layer's weight [out, in], of a checkpoint in `dtype`, safetensors' word."""
    parts = ALL[scheme].parts(shape, dtype)
    return sum(prod(shape) * STORED[dtype].itemsize for _, dtype, shape in parts)


@functools.lru_cache(512)
def weights(config: ModelConfig, scheme: str, dtype: str = "bf16") -> int:
    """Bytes of all; `dtype` is what the checkpoint stores."""
    kind, found = stored(dtype), 0
    quantised = linear(config)
    for spec in specs_of(config, "f16"):
        for name in spec.sources:
            shape = spec.source_shape
            plain = prod(shape) * STORED[kind].itemsize
            found += of_layer(scheme, shape, kind) if name in quantised else plain
    return found


@functools.lru_cache(512)
def per_weight(config: ModelConfig, scheme: str, dtype: str = "bf16") -> float:
    """Bytes of one weight of those that are quantised, scales counted, on average."""
    kind = stored(dtype)
    shapes = linear(config).values()
    size = sum(of_layer(scheme, shape, kind) for shape in shapes)
    return size / sum(map(prod, shapes))
