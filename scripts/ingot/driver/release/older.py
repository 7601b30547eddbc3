"""Which artifacts are older than their model: made of other files than the rules would take now."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ingot.base import digest, memo
from ingot.base.refused import Refused
from ingot.driver.cache.sources import LARGE
from ingot.driver.catalogue.model import base_of, on_hub
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.driver.catalogue.targets import FOLDER, model_of
from ingot.driver.release.on_record import LISTING
from ingot.model.checkpoint import identity
from ingot.model.checkpoint.files import name_of
from ingot.model.hub.listing import read_listing
from ingot.store import leases
from ingot.store.records import Record, Store

CONFIG = "config"  # the role of config.json, alone


def why(
    root: Path, store: Store, catalogue: dict[str, Any], wanted: Iterable[str]
) -> dict[str, str]:
    """By target of `wanted`: what its model has become since, as a phrase; of the others nothing.

    Of what stands in artifacts/ as a run of this folder asked for it.  A shard above LARGE whose state is
    not on record is not read for it, but compared by samples: `ingot explain` reads it.  Of what cannot be
    read, nothing is said.
    """
    looked, found = _Look(Inputs(catalogue, root, decides=False), store), {}
    for target in wanted:
        try:
            if reason := looked.at(target):
                found[target] = reason
        except (Refused, OSError):  # it is the artifact that was asked for, not its source
            continue
    return found


def told(root: Path, store: Store, catalogue: dict[str, Any], wanted: Iterable[str]) -> None:
    """Say it of each on stderr."""
    for target, reason in why(root, store, catalogue, wanted).items():
        print(sentence(target, reason), file=sys.stderr)


def sentence(target: str, reason: str) -> str:
    again = f"{FOLDER}{Path(target).name}"
    return f"{target}: older than its model: {reason}; `snakemake {again}` builds it again"


class _Look:
    """The records of this folder's actions, by what they gave: several may have given the same bytes."""

    def __init__(self, inputs: Inputs, store: Store):
        self.inputs, self.store = inputs, store
        self.gave: dict[str, list[Record]] = {}
        for record in store.of_keys(leases.keys(store, Path())):
            for output in record.outputs:
                self.gave.setdefault(output["digest"], []).append(record)
        self.known: dict[
            tuple[str, str, str], str
        ] = {}  # of an action, for a model: why it is older
        self.lists = {
            "weights": inputs.weights,
            "tokenizer": inputs.tokenizer,
            "lora": inputs.lora,
            "adapter": inputs.lora,
        }

    def at(self, target: str) -> str:
        """Empty where any action that gave this would be taken now."""
        path = Path(target)
        if path.absolute().parent != Path(FOLDER).absolute() or not path.exists():
            return ""
        name = memo.known(path) if path.is_file() else digest.of(path)
        reasons = []
        for record in self.gave.get(name or "", []):
            own = model_of(self._writes(record))
            reasons.append(self._why(record, {own: model_of(path.name)}))
        return "" if not all(reasons) else next(iter(reasons), "")

    def _writes(self, record: Record) -> str:
        said = self.store.config(record).get("about", {}).get("way", {}).get("writes")
        return (said or [f"{FOLDER}{record.outputs[0]['title']}"])[0]

    def _why(self, record: Record, names: dict[str, str]) -> str:
        """Why an action would not be taken now, or one that it rests on; `names` are models that are called
        otherwise now: what one model's action gave may be another's, too."""
        writes = self._writes(record)
        model = names.get(model_of(writes), model_of(writes))
        key = (record.rule, record.key, model)
        if key not in self.known:
            self.known[key] = ""
            if model in self.inputs.catalogue["models"]:
                self.known[key] = self._of_inputs(record, writes, model, names)
        return self.known[key]

    def _of_inputs(self, record: Record, writes: str, model: str, names: dict[str, str]) -> str:
        if writes.endswith(LISTING):
            return self._moved(record, model)
        config = self.store.config(record)
        about = config.get("about", {})
        samples, reads = about.get("samples", {}), about.get("way", {}).get("reads", {})
        made = {name_of(Path(path)) for path in reads}  # maybe elsewhere, and restored here
        for role, value in config.get("fields", {}).get("inputs", {}).items():
            pairs = value if isinstance(value, list) else [["config.json", value]]
            read = {}
            for title, was in pairs:
                makers = self.gave.get(was, [])
                reasons = [self._why(one, names) for one in makers]
                if reasons and all(reasons):
                    return reasons[0]
                if not makers and title not in made:
                    read[title] = was
            titles = {title for title, _ in pairs}
            if read and (reason := self._of_files(role, read, titles, model, samples)):
                return reason
        return ""

    def _of_files(
        self, role: str, read: dict[str, str], titles: set[str], model: str, samples: dict[str, str]
    ) -> str:
        """Which file of a role is not what was read: `read` are those that no action made."""
        wildcards = SimpleNamespace(model=model)
        if role == CONFIG:
            place = Path(self.inputs.config_json(wildcards))
            changed = place.is_file() and digest.of(place) != read["config.json"]
            return f"{place} has changed since" if changed else ""
        if role not in self.lists:
            return ""
        here = {name_of(path): path for path in map(Path, self.lists[role](wildcards))}
        here = {title: path for title, path in here.items() if path.is_file()}
        for title, was in read.items():
            if title not in here:
                return f"{title} is gone since"
            if not _holds(here[title], was, samples.get(title)):
                return f"{here[title]} has changed since"
        more = sorted(here.keys() - titles)
        return f"{here[more[0]]} is new since" if more else ""

    def _moved(self, record: Record, model: str) -> str:
        """Has the catalogue another repository, or commit of it, than the one whose files were listed?"""
        place, models = (
            self.store.blob(record.outputs[0]["digest"]),
            self.inputs.catalogue["models"],
        )
        if not place.is_file():
            return ""
        said = read_listing(place)
        now = [on_hub(models[model]), on_hub(models[base_of(model, models[model])])]
        hubs = {one["hub"]: one.get("revision") for one in now if one.get("hub")}
        commit = f"{said['hub']} at {said['revision'][:12]}"
        if hubs and said["hub"] not in hubs:
            return f"made of {commit}, the catalogue has {next(iter(hubs))}"
        revision = hubs.get(said["hub"])
        if revision and revision != said["revision"]:
            return f"made of {commit}, the catalogue has {revision[:12]}"
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
