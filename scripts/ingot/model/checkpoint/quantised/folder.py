"""What lies beside the shards of a quantised checkpoint: config.json, the index, the tokenizer."""

import json
from pathlib import Path

from ingot.base.fields import read_json
from ingot.base.sealed import Contents
from ingot.model.checkpoint.files import name_of
from ingot.model.checkpoint.quantised import blocks
from ingot.model.checkpoint.quantised.write import Plan
from ingot.model.checkpoint.safetensors import INDEX

CONFIG, ONE = "config.json", "model.safetensors"


def contents(plan: Plan, tokenizer: list[Path]) -> Contents:
    """All but the shards."""
    found: Contents = {name_of(path): path for path in tokenizer}
    source = plan.rows.checkpoint[CONFIG]
    said = read_json(source)
    said["quantization_config"] = plan.scheme.config(plan.left())
    found[CONFIG] = json.dumps(said, indent=2) + "\n"
    if [*plan.shards] != [ONE]:
        parts = {
            shard: [part for item in items for part in plan.parts(*item)]
            for shard, items in plan.shards.items()
        }
        found[INDEX] = blocks.index(parts)
    return found
