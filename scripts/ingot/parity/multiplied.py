"""A checkpoint of FP8 with scales of blocks as the weights that it stands for, by torch alone.

transformers multiplies it out by itself, where there is no GPU; but by blocks of rows over rows of scales,
not by the size that config.json says: it stops at DeepSeek's 576 rows, which are four blocks and a half,
and takes 192 for two of 96 (5.24.0, integrations/finegrained_fp8.py).
"""

from pathlib import Path
from typing import Any

from ingot.base.fields import read_json

CONFIG, KEY, END = "config.json", "quantization_config", "_scale_inv"
INDEX = "model.safetensors.index.json"


def block_of(folder: Path) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None of a checkpoint of other weights."""
    said = read_json(folder / CONFIG).get(KEY)
    sides = said.get("weight_block_size") if isinstance(said, dict) else None
    if not isinstance(sides, list) or len(sides) != 2 or said.get("quant_method") != "fp8":
        return None
    return (sides[0], sides[1])


def state_of(folder: Path, block: tuple[int, int]) -> dict[str, Any]:
    """By name its tensors, float32; scales are not among them."""
    from safetensors.torch import load_file

    shards = {path.name for path in folder.glob("model*.safetensors")}
    if (folder / INDEX).exists():
        shards = {*read_json(folder / INDEX)["weight_map"].values()}
    stored: dict[str, Any] = {}
    for name in sorted(shards):
        stored |= load_file(folder / name)
    found = {}
    for name in [one for one in stored if not one.endswith(END)]:
        found[name] = stored.pop(name).float()
        if (scales := stored.pop(f"{name}{END}", None)) is not None:
            rows, columns = found[name].shape
            each = scales.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            found[name] *= each[:rows, :columns]
    return found
