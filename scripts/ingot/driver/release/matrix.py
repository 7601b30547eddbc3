"""Which cells a release consists of: those of the matrix that can be built and verified.

formats: [gguf, irpa, vmfb, shortfin]      # default: all that somebody serves
tp: [1, 2, 8]                              # default: all of the model's; whole formats have none
variants: [q4_k_m, gfx942]                 # beside the model's own; default: none
cells: [demo.q8_0.gguf]                    # these, too, without artifacts/
"""

from pathlib import Path
from typing import Any

from ingot.base import yaml_text
from ingot.base.refused import Refused
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats.rows import FINAL, FORMATS, RECORD

KEYS = {"formats": str, "tp": int, "variants": str, "cells": str}


def read(path: Path | None) -> dict[str, list]:
    """The matrix in a file; an empty one without it.  Refused: another form."""
    if path is None:
        return {}
    found = yaml_text.only(path, "a matrix")
    for name, value in found.items() if isinstance(found, dict) else [(found, None)]:
        kind = KEYS.get(name) if isinstance(name, str) else None
        if kind is None or not isinstance(value, list) or {type(one) for one in value} - {kind}:
            known = ", ".join(KEYS)
            raise Refused(f"{path}: {name}: {value!r}, expected a list, of {known}")
    return found


def cells(model: str, catalogue: dict, matrix: dict[str, Any]) -> list[str]:
    """The targets.  Refused: an unknown model, format or cell, one without a record, an empty release."""
    targets.stop_on_unknown(model, catalogue)
    if odd := [name for name in matrix.get("formats", ()) if name not in FORMATS]:
        raise Refused(f"formats: {odd[0]}, expected of {', '.join(FORMATS)}")
    found = [targets.FOLDER + name for name in matrix.get("cells", ())]
    for target in found:
        targets.check(target + RECORD, catalogue)
    for target in targets.legal_of(model, catalogue):
        parts = targets.parsed(target, catalogue)
        if (
            parts and parts.format in matrix.get("formats", FINAL)
            and parts.tp in (None, *matrix.get("tp", [parts.tp]))
            and parts.variant in (None, *matrix.get("variants", ()))
            and not targets.why_not(target + RECORD, catalogue)
        ):  # fmt: skip
            found.append(target)
    if not found:
        raise Refused(f"{model}: the matrix has no cell that can be verified; add formats to it")
    return list(dict.fromkeys(found))
