"""Which modules of its base a LoRA adapter is for, as PEFT reads its adapter_config.json."""

import re
from collections.abc import Iterator
from typing import Any

from ingot.base.fields import Whole

FORM = {
    "target_modules?": (str, [str], None), "exclude_modules?": (str, [str], None),
    "modules_to_save?": ([str], None), "layers_to_transform?": (Whole(0), [Whole(0)], None),
    "layers_pattern?": (str, [str], None),
}  # fmt: skip
ALL_LINEAR = "all-linear"  # but for the output layer
NOT_LINEAR = ("embed_tokens", "lm_head")
# PEFT has no modules of these: transformers 5 keeps the experts of a layer in one tensor
ROUTED = re.compile(r"\.(experts|gate|router)\b")
# of a pattern: names, and expressions of few parts that may be tried more than once
PATTERN = re.compile(r"[\w.^$|()*+?\[\]\\-]{1,200}")
AGAIN, REPEATS, CHOICES = re.compile(r"\)[*+?]"), 2, 8


def is_quick(pattern: str) -> bool:
    """An expression whose search ends soon, whatever the name: it comes from a stranger."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    repeats = len(re.findall(r"[*+?]", pattern))
    few = repeats <= REPEATS and pattern.count("|") <= CHOICES
    return few and bool(PATTERN.fullmatch(pattern)) and not AGAIN.search(pattern)


def is_known(config: dict[str, Any]) -> bool:
    """Can it be told in little time what these settings name?  Of none, PEFT goes by the kind of model."""
    return config.get("target_modules") is not None and all(map(is_quick, _expressions(config)))


def _expressions(config: dict[str, Any]) -> Iterator[str]:
    for key in ("target_modules", "exclude_modules"):
        if isinstance(one := config.get(key), str) and one.lower() != ALL_LINEAR:
            yield one
    yield from config.get("modules_to_save") or ()
    yield from _patterns(config)


def _patterns(config: dict[str, Any]) -> list[str]:
    found = config.get("layers_pattern") or []
    return [found] if isinstance(found, str) else found


def is_targeted(config: dict[str, Any], module: str) -> bool:
    """Does PEFT put matrices beside this module of the base, by its own name of it?"""
    if _names(config.get("exclude_modules") or [], module):
        return False
    saved = config.get("modules_to_save") or ()
    if any(re.match(rf"(^|.*\.){one}($|\..*)", module) for one in saved):
        return False
    wanted = config.get("target_modules") or []
    if isinstance(wanted, str) and wanted.lower() == ALL_LINEAR:
        return module.rpartition(".")[2] not in NOT_LINEAR
    whole = isinstance(wanted, str) or module in wanted  # which no number of a layer restricts
    return _names(wanted, module) and (whole or _in_layers(config, module))


def _names(wanted: str | list[str], module: str) -> bool:
    if isinstance(wanted, str):
        return bool(re.fullmatch(wanted, module))
    return any(module == one or module.endswith(f".{one}") for one in wanted)


def _in_layers(config: dict[str, Any], module: str) -> bool:
    layers = config.get("layers_to_transform")
    if layers is None or layers == []:
        return True
    before = [rf"(?:^|.*?\.){one}" for one in _patterns(config)] or [r".*?\.[^.]*"]
    found = (re.match(rf"{one}\.(\d+)\.", module) for one in before)
    number = next((int(one[1]) for one in found if one), None)
    return number in (layers if isinstance(layers, list) else [layers])
