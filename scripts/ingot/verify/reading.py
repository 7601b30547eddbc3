"""What transformers makes of a config.json, by read_config.py: the second reading of every number."""

from pathlib import Path
from typing import Any

from ingot.fields import Number, Whole, read_json

Reading = dict[str, Any]
SIZES = ("vocab", "hidden", "layers", "ffn", "heads", "kv_heads", "head_dim", "context")
FORM = {
    "transformers": str,
    "architecture": str,
    **dict.fromkeys(SIZES, Whole()),
    "rms_eps": Number(above=0),
    "tied": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
    "rope_type": str,
    "rope_theta": Number(above=0),
    "rope_scale": Number(above=0),
    "frequencies": [Number()],
}


def read(path: Path) -> Reading:
    return read_json(path, FORM)
