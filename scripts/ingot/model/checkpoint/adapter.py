"""A LoRA adapter, as PEFT saves it: what it adds to which tensors of its base.

Format: adapter_config.json and adapter_model.safetensors of https://huggingface.co/docs/peft; every field
that would change a number is honoured or refused.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.fields import Number, Whole, held, read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint import targeted
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.safetensors import (  # fmt: skip
    BESIDE,
    INSIDE,
    Tensor,
    outside,
    read_header,
    same_bytes,
)
from ingot.model.specs import EMBEDDING, HEAD

WEIGHTS = "adapter_model.safetensors"  # beside ADAPTER
PREFIX = "base_model.model."  # of every name in it: the base inside PEFT's own modules
FACTORS = {  # how the names of a pair end
    ".lora_A.weight": "A", ".lora_B.weight": "B", ".lora_embedding_A": "A", ".lora_embedding_B": "B",
}  # fmt: skip
# its fields: what the merge goes by, or what must agree with the tensors,
HONOURED = (
    "r", "lora_alpha", "alpha_pattern", "rank_pattern", "use_rslora", "target_modules", "exclude_modules",
    "modules_to_save", "layers_to_transform", "layers_pattern",
)  # fmt: skip
# what the tensors say themselves, or what is of training alone,
NEUTRAL = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "bias", "megatron_config", "megatron_core", "loftq_config", "eva_config",
    "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config", "ensure_weight_tying",
)  # fmt: skip
# and those that begin from another base than the checkpoint
OTHER_BASE = re.compile("pissa|olora|loftq|corda|lora_ga")
POSITIVE = {"alpha_pattern": Number(0), "rank_pattern": Whole()}
FORM = {
    "r": Whole(), "lora_alpha": Number(0), "use_rslora": (bool, None), "bias": (str, None), **targeted.FORM
}  # fmt: skip
TIED = (EMBEDDING, HEAD)


@dataclass(frozen=True)
class Lora:
    """A pair of matrices: weight [out, in] += scale * b [out, r] @ a [r, in]."""

    scale: float
    a: Tensor
    b: Tensor
    embedding: bool  # whose rows are tokens: += scale * transposed(b [hidden, r] @ a [r, tokens])

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        sizes = (self.b.shape[0], self.a.shape[1])
        return sizes[::-1] if self.embedding else sizes


@dataclass(frozen=True)
class Adapter:
    """What an adapter adds to the tensors of its base, or puts in their place, by their names."""

    path: Path
    alpha: float
    rank: int  # the largest that adapter_config.json says, whatever its matrices have
    bias: str  # which biases it trained, in PEFT's words
    loras: dict[str, Lora]
    replaced: dict[str, Tensor]
    aim: dict[str, Any] | None  # adapter_config.json, where it can be told what its fields name
    inside: tuple[str, ...]  # those of INSIDE with which its modules' names begin

    def fits(self, shapes: dict[str, tuple[int, ...]], tied: tuple[str, ...] = ()) -> None:
        """Refused: of another base or shape, of a matrix that is two (names in `tied`), or not whole.

        `shapes` are those of the base's tensors.
        """
        for name in (*self.loras, *self.replaced):
            if name.startswith(BESIDE):
                raise Refused(
                    f"{self.path}: adapts {name}, of the part for images, which no file of ours holds; "
                    "merge it by peft's merge_and_unload"
                )
            if name not in shapes and name not in tied:
                raise Refused(
                    f"{self.path}: adapts {name}, which its base does not have; name the base that it was "
                    "trained on"
                )
            if name in tied:
                raise Refused(
                    f"{self.path}: adapts {name}, which its base ties to another matrix; merge it by "
                    "peft's merge_and_unload, and save it with tie_word_embeddings false"
                )
        for name, lora in self.loras.items():
            if lora.shape != shapes[name]:
                raise Refused(
                    f"{self.path}: is for {name} of shape {list(lora.shape)}, but its base has "
                    f"{list(shapes[name])}; name the base that it was trained on"
                )
        modules = [
            name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2
        ]
        if absent := [
            one for one in modules if f"{one}.weight" not in self.loras and self._is_due(one)
        ]:
            count = f", and for {len(absent) - 1} more" if absent[1:] else ""
            raise Refused(
                f"{self.path}: no matrices for {absent[0]}{count}, expected those of all that "
                f"target_modules of {ADAPTER} names; name only the others there, or save the adapter by "
                "peft again"
            )

    def _is_due(self, module: str) -> bool:
        """Does PEFT expect matrices beside this one of the base?"""
        if self.aim is None or targeted.ROUTED.search(module):
            return False
        prefix = next((one for one in self.inside if module.startswith(INSIDE[one])), "")
        named = prefix + module.removeprefix(INSIDE[prefix]) if prefix else module
        return targeted.is_targeted(self.aim, named)


def read(checkpoint: Checkpoint) -> Adapter | None:
    """The adapter among a checkpoint's files, if there is one."""
    if ADAPTER not in checkpoint:
        return None
    place, path = checkpoint[ADAPTER], checkpoint[WEIGHTS]
    config = settings(place)
    pairs: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Tensor] = {}
    for name, tensor in read_header(path).items():
        if not name.startswith(PREFIX):
            raise Refused(f"{path}: tensor {name}, expected names that begin with {PREFIX}")
        module = name.removeprefix(PREFIX)
        end = next((end for end in FACTORS if module.endswith(end)), None)
        if end:
            pairs.setdefault(module.removesuffix(end), {})[end] = tensor
        elif "lora_" in module:
            raise Refused(f"{path}: tensor {name} is of no LoRA that is known; merge it by peft")
        elif ".original_module." not in module:  # which PEFT does not use
            base = outside(_base_name(module))
            if base in replaced and not same_bytes(replaced[base], tensor):
                raise Refused(
                    f"{path}: holds two {base} that differ, expected one; merge it by peft"
                )
            replaced[base] = tensor
    aim = config if targeted.is_known(config) else None
    loras = {}
    for module, factors in pairs.items():
        if aim and not targeted.is_targeted(aim, module):
            raise Refused(
                f"{place}: target_modules, with the fields that restrict it, leaves out {module}, of which "
                f"{WEIGHTS} has matrices that PEFT would ignore; name it, or save the adapter by peft again"
            )
        by_letter = {FACTORS[end]: tensor for end, tensor in factors.items()}
        if len(factors) != 2 or len(by_letter) != 2:
            raise Refused(f"{path}: {module} has half a pair of matrices; fetch or copy it again")
        a, b = by_letter["A"], by_letter["B"]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
            raise Refused(
                f"{path}: {module} has matrices of {list(a.shape)} and {list(b.shape)}, expected [r, in] "
                "and [out, r]; fetch or copy it again"
            )
        rank = _by_pattern(config["rank_pattern"] or {}, module, config["r"])
        if a.shape[0] != rank:
            raise Refused(
                f"{path}: {module} has rank {a.shape[0]}, expected {rank} by {place.name}"
            )
        alpha = _by_pattern(config["alpha_pattern"] or {}, module, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        embedding = any("embedding" in end for end in factors)
        if outside(f"{module}.weight") in loras:
            raise Refused(f"{path}: {module} is there by two names, expected one")
        loras[outside(f"{module}.weight")] = Lora(scale, a, b, embedding)
    if not loras and not replaced:
        raise Refused(f"{path}: holds no tensor, expected an adapter's")
    most = max(config["r"], *config["rank_pattern"].values(), 1)
    alpha, bias = float(config["lora_alpha"]), config["bias"] or "none"
    inside = tuple(one for one in INSIDE if any(name.startswith(one) for name in pairs))
    return Adapter(path, alpha, most, bias, loras, replaced, aim, inside)


def _base_name(module: str) -> str:
    """Of a whole tensor: of modules_to_save, or its base's own."""
    return module.replace(".base_layer.", ".").replace(".modules_to_save.", ".")


def settings(path: Path) -> dict[str, Any]:
    """adapter_config.json.  Refused: a field that would change the numbers, and is not honoured."""
    config = read_json(path)
    if (kind := config.get("peft_type")) != "LORA":
        raise Refused(f"{path}: peft_type is {kind}, expected LORA; merge it by peft")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and OTHER_BASE.search(start.lower()):
        raise Refused(
            f"{path}: init_lora_weights is {start}, which changes its base; merge it by peft"
        )
    known = ("peft_type", "init_lora_weights", *HONOURED, *NEUTRAL)
    for key, value in config.items():
        if key not in known and value:
            raise Refused(
                f"{path}: {key} is {value!s:.80}, which is not merged here; merge it by peft"
            )
    config = {"r": 8, "lora_alpha": 8, "use_rslora": False, "bias": None, **config}
    held(path, config, FORM)
    for table in ("alpha_pattern", "rank_pattern"):
        config[table] = config.get(table) or {}
        held(path, {table: config[table]}, {table: {str: POSITIVE[table]}})
        for key in config[table]:
            if not targeted.is_quick(key):
                raise Refused(
                    f"{path}: {table} names {key:.80}, expected a module's name; merge it by peft"
                )
    return config


def _by_pattern(table: dict[str, Any], module: str, otherwise: Any) -> Any:
    """As PEFT finds it: the first that the end of the name fits."""
    for key, value in table.items():
        if re.fullmatch(rf"(.*\.)?({key})", module):
            return value
    return otherwise
