"""A release as one document: each cell with its recipe, its bytes and its numbers.

    {"format": 1, "model": ..., "version": ...,
     "cells": {title: {"target", "recipe", "digest", "bytes", "checks"}},
     "actions": {recipe: {"rule", "outputs", "fields"}}}

A recipe is the digest of an action's fields, in which each input that an action makes is that one's recipe.
The numbers are those of the verification record.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ingot.base.fields import Whole, json_of
from ingot.base.refused import Refused
from ingot.driver.catalogue.formats.rows import RECORD
from ingot.driver.release.on_record import OnRecord
from ingot.driver.show.quality import few
from ingot.registry.published import files as files_of

FORMAT = 1
SIZE = Whole(0, 2**63 - 1)
CELL = {"target": str, "recipe": str, "digest": str, "bytes": SIZE, "checks": {}}
FIELDS = {
    "version": SIZE, "rule": str, "command": str, "params": {}, "wildcards": {}, "code": {str: str},
    "lock": {str: str}, "inputs": {str: (str, [[str]])}, "outputs": [[(str, bool)]],
}  # fmt: skip
FORM = {
    "format": Whole(1, FORMAT), "model": str, "version": str, "cells": {str: CELL},
    "actions": {str: {"rule": str, "outputs": [str], "fields": FIELDS}},
}  # fmt: skip


@dataclass
class Document:
    model: str
    version: str
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    actions: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}@{self.version}"

    def table(self) -> str:
        """The cells with their sizes and first numbers, for people."""
        rows = []
        for title, cell in sorted(self.cells.items()):
            shown = ", ".join(few(cell["checks"]))
            rows.append(f"{title:32} {cell['bytes'] / 1e6:12,.1f} MB  {shown}")
        return "\n".join(rows)

    def text(self) -> bytes:
        said = {"format": FORMAT, **vars(self)}
        return json.dumps(said, indent=1, sort_keys=True).encode() + b"\n"


def read(what: str, text: bytes) -> Document:
    """Refused: what is no document of a release."""
    found = json_of(what, text, FORM)
    for action in found["actions"].values():
        for value in action["fields"]["inputs"].values():
            if isinstance(value, list) and any(len(pair) != 2 for pair in value):
                raise Refused(f"{what}: an input that is no pair of name and digest; not taken")
    return Document(found["model"], found["version"], found["cells"], found["actions"])


def of(found: OnRecord, model: str, version: str, targets: list[str]) -> Document:
    """The document of targets; one that is not on record has no bytes and no numbers yet."""
    document = Document(model, version)
    for target in targets:
        job = found.makers.get(target, {})
        if not job.get("recipe"):
            raise Refused(
                f"{target}: what it is made from is not known here, expected a pinned revision or a "
                "checkpoint; name it in models.yaml"
            )
        cell = {"target": target, "recipe": job["recipe"], "digest": "", "bytes": 0, "checks": {}}
        if found.record(target):
            files = files_of(found.output(target), found.outputs(target))
            size = sum(one["size"] for one in files)  # of a set, with its ranks
            cell |= {"digest": found.output(target)["digest"], "bytes": size}
        if found.record(target + RECORD):
            cell["checks"] = _checks(found, target)
        document.cells[target.rpartition("/")[2]] = cell
        _add(document, found, target)
    return document


def _checks(found: OnRecord, target: str) -> dict[str, Any]:
    said = found.output(target + RECORD)
    if not found.store.has(said["digest"]):
        return {}
    return json.loads(found.store.blob(said["digest"]).read_bytes()).get("checks", {})


def _add(document: Document, found: OnRecord, path: str) -> None:
    """The actions on the way to `path`, by recipe."""
    job = found.makers.get(path, {})
    if not job.get("recipe") or job["recipe"] in document.actions:
        return
    titles = [path.rpartition("/")[2] for path in job["outputs"]]
    document.actions[job["recipe"]] = {
        "rule": job["rule"], "outputs": titles, "fields": job["fields"]
    }  # fmt: skip
    for one in job["inputs"]:
        _add(document, found, one)
