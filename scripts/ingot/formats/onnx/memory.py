"""What onnxruntime-genai holds of a model that it runs on a CPU: weights, cache, and what it computes in.

As measured of 0.18, which a test does again.  It reads a prompt at once, and holds the scores of a layer's
attention whole: tokens by tokens for each head.  Bytes, unless said otherwise.
"""

from dataclasses import dataclass

BASE = 100 << 20  # the runtime itself
VALUE = {"": 4, "fp16": 2, "int8": 4}  # of what is computed and cached, by variant
KEPT = 2  # of a token's keys and values: those of the past, and with the new ones


@dataclass(frozen=True)
class Layers:
    """Of a model: values of a token."""

    hidden: int
    ffn: int
    heads: int
    cached: int  # keys and values of all layers


def held(weights: float, layers: Layers, context: int, requests: int, variant: str) -> float:
    """Of `requests` at once, each a prompt of `context` tokens; `weights` as they are computed with."""
    of_token = KEPT * layers.cached + 2 * layers.ffn + 2 * layers.hidden
    values = context * (of_token + layers.heads * context)
    return weights + BASE + requests * values * VALUE[variant]
