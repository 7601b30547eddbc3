"""What lies beside MLX's shards: config.json as mlx-lm reads it, the index, the tokenizer."""

import json
from pathlib import Path
from typing import Any

from ingot.base.fields import read_json
from ingot.base.sealed import Contents
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.checkpoint.quantised import blocks, mlx
from ingot.model.checkpoint.quantised.mlx import GROUP, Tensor
from ingot.model.checkpoint.safetensors import INDEX
from ingot.model.config import ModelConfig
from ingot.model.layers import FULL

CONFIG, GENERATION = "config.json", "generation_config.json"


def contents(
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    config: ModelConfig,
    files: dict[str, list[Tensor]],
    bits: int,
) -> Contents:
    """All but the shards."""
    found: Contents = {name_of(path): path for path in tokenizer}
    said = document(checkpoint, tokenizer, config, files, bits)
    found[CONFIG] = json.dumps(dict(sorted(said.items())), indent=4) + "\n"
    found[INDEX] = blocks.index(
        {name: [part for one in held for part in one.parts] for name, held in files.items()}
    )
    return found


def document(
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    config: ModelConfig,
    files: dict[str, list[Tensor]],
    bits: int,
) -> dict[str, Any]:
    """config.json: the checkpoint's, and what mlx-lm goes by."""
    said = read_json(checkpoint[CONFIG])
    for path in tokenizer:
        if path.name == GENERATION and (ends := read_json(path).get("eos_token_id")):
            said["eos_token_id"] = ends  # as mlx-lm's converter takes it over
    if "rope_theta" not in said:
        # transformers 5 writes rope_parameters, which mlx-lm's classes do not read
        said["rope_theta"] = config.rope_theta
        both = said.get("rope_parameters") or {}
        rope = {**both.get(FULL, both)}
        rope.pop("rope_theta", None)
        if rope.get("rope_type", "default") != "default":
            said["rope_scaling"] = rope
        if config.sliding and config.sliding.theta:
            said["rope_local_base_freq"] = config.sliding.theta
    # where it is not said, its classes do not take transformers' default
    said.setdefault("tie_word_embeddings", config.tied)
    if bits:
        usual = {"group_size": GROUP, "bits": bits, "mode": "affine"}
        odd = {
            one.name.removesuffix(".weight"): {"group_size": GROUP, "bits": one.bits}
            for held in files.values()
            for one in held
            if one.bits and mlx.in_eight_bits(config, one.name)
        }
        said["quantization"] = said["quantization_config"] = usual | odd
    return said
