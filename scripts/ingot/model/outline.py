"""What config.json says of a model that we have no table for: enough to plan by, and no more.

Nothing is built from these numbers: an upstream tool reads config.json by itself, and what it writes is
compared with transformers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.fields import Whole, read_json
from ingot.base.refused import Refused
from ingot.model.config import MOST_LAYERS, SIZE

NO_TABLE = "no_table"  # of features.FEATURES
ENDLESS = 2048  # tokens, of a model that names no longest context, such as a recurrent one
# by the names that families give them, and what is planned by where config.json leaves it to transformers
KEYS: dict[str, tuple[tuple[str, ...], Whole, int]] = {
    "vocab": (("vocab_size",), SIZE, 1 << 18),
    "hidden": (("hidden_size", "n_embd", "d_model"), SIZE, 4096),
    "layers": (
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), Whole(high=MOST_LAYERS), 32,
    ),
    "heads": (("num_attention_heads", "n_head", "n_heads"), SIZE, 1),
    "context": (
        ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"), Whole(), ENDLESS,
    ),
}  # fmt: skip
# where the part for texts lies, of a model that also sees or hears
TEXTS = ("text_config", "llm_config", "lm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class Outline:
    """Numbers of a model; `context` is in tokens."""

    architecture: str
    vocab: int
    hidden: int
    layers: int
    context: int
    heads: int

    @property
    def needs(self) -> tuple[str, ...]:
        return (NO_TABLE,)


def planned(architecture: str, said: dict[str, int]) -> Outline:
    """Of what is said; for all else what is usual."""
    return Outline(architecture, **{name: said.get(name, KEYS[name][2]) for name in KEYS})


def read_outline(path: Path) -> Outline:
    """Of the `config.json` at `path`."""
    return planned(*said_by(path))


def said_by(path: Path) -> tuple[str, dict[str, int]]:
    """The architecture, and those numbers that config.json says."""
    config = read_json(path, {"architectures": [str], **{f"{one}?": ({}, None) for one in TEXTS}})
    if not config["architectures"]:
        raise Refused(f"{path}: architectures is empty, expected the model's class; add it")
    inner = config
    while part := next((inner[one] for one in TEXTS if isinstance(inner.get(one), dict)), None):
        inner = {key: value for key, value in inner.items() if key not in TEXTS} | part
    found = {name: _number(path, inner, name) for name in KEYS}
    return config["architectures"][0], {name: one for name, one in found.items() if one is not None}


def _number(path: Path, config: dict[str, Any], name: str) -> int | None:
    keys, expected, _ = KEYS[name]
    key = next((key for key in keys if config.get(key) is not None), None)
    if key is None:
        return None
    if not expected.holds(config.get(key)):
        raise Refused(f"{path}: {key} is {config.get(key)!s:.60}, expected {expected}")
    return config[key]
