"""Which artifacts are older than their model: made of other files than the rules would take now."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.cache.sources import LARGE
from ingot.driver.catalogue.model import base_of, on_hub
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.driver.catalogue.targets import FOLDER, model_of
from ingot.driver.release.on_record import LISTING
from ingot.model.checkpoint import identity
from ingot.model.checkpoint.files import name_of
from ingot.model.hub.listing import read_listing
from ingot.store import way
from ingot.store.records import Store


def why(
    root: Path, store: Store, catalogue: dict[str, Any], wanted: Iterable[str]
) -> dict[str, str]:
    """By target of `wanted`: what its model has become since, as a phrase; of the others nothing.

    Of what stands in the working folder as some action gave it.  A shard above LARGE whose state is not on
    record is not read for it, but compared by samples: `ingot explain` reads it.
    """
    found, inputs = {}, Inputs(catalogue, root, decides=False)
    for target, record in way.stand(store, wanted).items():
        jobs = way.of(store, record, target)
        if reason := next(filter(None, (_changed(inputs, store, job) for job in jobs)), ""):
            found[target] = reason
    return found


def sentence(target: str, reason: str) -> str:
    again = f"{FOLDER}{Path(target).name}"
    return f"{target}: older than its model: {reason}; `snakemake {again}` builds it again"


def _changed(inputs: Inputs, store: Store, job: dict[str, Any]) -> str:
    """What of the model is not what the action read, or fetched; empty where all is."""
    name, models = model_of(job["outputs"][0]), inputs.catalogue["models"]
    record = store.lookup(job["rule"], job["key"])
    if not record or name not in models:
        return ""
    if job["outputs"][0].endswith(LISTING):
        entries = [models[name], models[base_of(name, models[name])]]
        return _moved(entries, store.blob(record.outputs[0]["digest"]))
    config = store.config(record)
    made = {Path(path).name for path in job["inputs"]}
    samples = config.get("about", {}).get("samples", {})
    for role, now in (("weights", inputs.weights), ("tokenizer", inputs.tokenizer)):
        listed = config.get("fields", {}).get("inputs", {}).get(role)
        pairs = listed if isinstance(listed, list) else []
        read = {title: was for title, was in pairs if title not in made}
        if not read:  # what an action made, as of a model of the hub
            continue
        try:
            paths = [Path(path) for path in now(SimpleNamespace(model=name))]
        except (Refused, OSError):  # an entry that has become another kind of model's
            continue
        here = {name_of(path): path for path in paths if path.is_file()}
        for title, was in read.items():
            if title not in here:
                return f"{title} is gone since"
            if not _holds(here[title], was, samples.get(title)):
                return f"{here[title]} has changed since"
        if more := sorted(here.keys() - read.keys() - made):
            return f"{here[more[0]]} is new since"
    return ""


def _holds(path: Path, was: str, sample: str | None) -> bool:
    if not was.startswith("tensors:"):
        return digest.of(path) == was
    known = identity.known(path)
    if known is None and path.stat().st_size > LARGE:
        return identity.sample(path) == sample
    try:
        return (known or identity.of(path)) == was
    except Refused:  # no shard any more
        return False


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
