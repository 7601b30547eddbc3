"""Which artifacts are older than their model: made of files that changed since, or of another commit."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.driver.catalogue.model import base_of, folder_of, on_hub
from ingot.driver.catalogue.targets import model_of
from ingot.driver.release.on_record import LISTING
from ingot.model.checkpoint import identity
from ingot.model.hub.listing import read_listing
from ingot.store import way
from ingot.store.records import Store


def why(
    root: Path, store: Store, catalogue: dict[str, Any], wanted: Iterable[str]
) -> dict[str, str]:
    """By target of `wanted`: what its model has become since, as a phrase; of the others nothing.

    Of what stands in the working folder as some action gave it.  Weights are not read for it: a shard
    whose state is not on record is compared by samples of it.
    """
    found = {}
    for target, record in way.stand(store, wanted).items():
        name = model_of(Path(target).name)
        if name in catalogue["models"]:
            jobs = way.of(store, record, target)
            changes = (_changed(root, store, catalogue["models"], name, job) for job in jobs)
            if reason := next(filter(None, changes), ""):
                found[target] = reason
    return found


def sentence(target: str, reason: str) -> str:
    return f"{target}: older than its model: {reason}; `snakemake {target}` builds it again"


def _changed(
    root: Path, store: Store, models: dict[str, Any], name: str, job: dict[str, Any]
) -> str:
    """What of the model is not what the action read, or fetched; empty where all is."""
    if not (record := store.lookup(job["rule"], job["key"])):
        return ""
    if job["outputs"][0].endswith(LISTING):
        entries = [models[name], models[base_of(name, models[name])]]
        return _moved(entries, store.blob(record.outputs[0]["digest"]))
    config = store.config(record)
    made = {Path(path).name for path in job["inputs"]}
    for title, was in _listed(config.get("fields", {}).get("inputs", {})):
        here = [place / title for place in _folders(root, models, name)]
        here = [place for place in here if place.is_file()]
        sample = config.get("about", {}).get("samples", {}).get(title)
        if title not in made and here and not any(_holds(one, was, sample) for one in here):
            return f"{here[0]} has changed since"
    return ""


def _listed(inputs: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and digest of the files that an action read as a list, as it read a checkpoint's."""
    for value in inputs.values():
        if isinstance(value, list):
            yield from ((name, said) for name, said in value)


def _folders(root: Path, models: dict[str, Any], name: str) -> list[Path]:
    """Where the model's own files lie on this machine: its adapter's, and its checkpoint's."""
    entry = models[name]
    local = (entry.get("adapter", {}).get("lora"), models[base_of(name, entry)].get("path"))
    return [folder_of({"path": path}, root) for path in local if path]


def _holds(path: Path, was: str, sample: str | None) -> bool:
    if not was.startswith("tensors:"):
        return digest.of(path) == was
    known = identity.known(path)
    return known == was if known else identity.sample(path) == sample


def _moved(entries: list[dict[str, Any]], place: Path) -> str:
    """Has the catalogue another commit of the repository whose files were listed?"""
    if not place.is_file():
        return ""
    said = read_listing(place)
    now = [on_hub(entry) for entry in entries]
    commits = {one.get("revision", "") for one in now if one.get("hub") == said["hub"]}
    if not commits or said["revision"] in commits:
        return ""
    return f"made of commit {said['revision'][:12]}, the catalogue has {max(commits)[:12]}"
