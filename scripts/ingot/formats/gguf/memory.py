"""What llama.cpp holds in memory of a model that it serves: weights, KV cache, what it computes in.

By libllama's own rules (llama-context.cpp, llama-kv-cache-iswa.cpp, at the commit that we pin); a test
compares them with what it reports.  Bytes, unless said otherwise.
"""

from dataclasses import dataclass
from math import ceil

PAD = 256  # tokens: a cache holds whole multiples
BATCH = 512  # tokens computed at once: its own default, n_ubatch
KV_TYPES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # bytes of a value: --cache-type-k and -v
F32, MASK = 4, 2


@dataclass(frozen=True)
class Cached:
    """What each token leaves behind: `sliding` of the `layers` see no more than `window` tokens."""

    layers: int
    values: int  # of a token in one layer, keys and values together
    sliding: int = 0
    window: int = 0


@dataclass(frozen=True)
class Widths:
    """What a batch is computed in: of a token that goes through several experts, `ffn` is of all.

    `attended` are values of a token in attention, where its heads share a latent.
    """

    vocab: int
    hidden: int
    ffn: int
    attended: int = 0


def padded(tokens: int) -> int:
    return ceil(tokens / PAD) * PAD


def cache(cached: Cached, context: int, requests: int = 1, kv_type: str = "f16") -> float:
    """Of `requests` at once, each of `context` tokens."""
    cells = padded(context)
    near = min(cells, padded(cached.window + BATCH))
    rows = (cached.layers - cached.sliding) * cells + cached.sliding * near
    return rows * requests * cached.values * KV_TYPES[kv_type]


def scratch(widths: Widths, context: int) -> float:
    """Of a batch: the logits of all its tokens, or a layer's feed-forward part beside the mask."""
    layer = max(3 * widths.ffn, widths.attended) + 4 * widths.hidden
    head = widths.vocab + 2 * widths.hidden
    return BATCH * max(F32 * head, F32 * layer + MASK * padded(context))
