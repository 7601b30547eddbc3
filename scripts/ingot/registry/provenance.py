"""How an artifact was made: SLSA provenance v1 of every action from the sources to it.

Source: slsa.dev/spec/v1.0/provenance.  Nothing of it is of a machine: no path, host, user or time.
"""

from dataclasses import dataclass
from typing import Any

from ingot.store.records import Record, Store

KIND = "https://slsa.dev/provenance/v1"
BUILD = "urn:ingot:build:2"  # the key's version
BUILDER = "urn:ingot:builder"
SLSA = {"tree": "ingotTree", "tensors": "ingotTensors"}  # kinds of digests that are Ingot's own


@dataclass(frozen=True)
class Step:
    """One action on the way.  `outputs` are sha256:, or tree: of a folder, by title."""

    rule: str
    key: str
    outputs: dict[str, str]
    fields: dict[str, Any]  # of the key

    def described(self) -> dict[str, Any]:
        named = ("command", "params", "wildcards")
        said = {name: self.fields[name] for name in named if self.fields.get(name)}
        return {
            "rule": self.rule, "key": self.key, "outputs": self.outputs, **said,
            "code": self.fields.get("code", {}), "lock": self.fields.get("lock", {}),
            "inputs": self.fields.get("inputs", {}),
        }  # fmt: skip


def of_hub(repository: str, revision: str) -> str:
    """What the name of a file there is put behind: a package URL, which says no host, since the bytes may
    have come from a mirror.  Source: purl-spec, type huggingface."""
    return f"pkg:huggingface/{repository}@{revision}#"


def step(store: Store, record: Record, named: list[dict[str, Any]] | None = None) -> Step:
    """A record's; `named` are its outputs by other names than it was written under."""
    outputs = {output["title"]: output["digest"] for output in named or record.outputs}
    return Step(record.rule, record.key, outputs, store.config(record).get("fields", {}))


def predicate(
    target: str, model: dict[str, Any], steps: list[Step], hub: dict[str, str], commit: str = ""
) -> dict[str, Any]:
    """SLSA's.  `model` is the catalogue's entry, `steps` are in the order in which they ran, the
    target's last; `hub` gives the address of a listing's repository by the listing's digest."""
    source = f"git+{commit}" if commit else "scripts"
    found: dict[str, dict[str, Any]] = {}
    for one in steps:
        for folder in ("code", "lock"):
            root = "scripts" if folder == "code" else "envs"
            for path, digest in one.fields.get(folder, {}).items():
                found[f"{root}/{path}"] = _resource(f"{root}/{path}", digest)
    for name, digest in leaves(steps).items():
        found[name] = _resource(name, digest)
    for one in steps:
        listing = one.fields.get("inputs", {}).get("listing")
        if place := hub.get(listing if isinstance(listing, str) else ""):
            for title, digest in one.outputs.items():
                found[title] = _resource(f"{place}{title}", digest) | {"name": title}
    return {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": {"target": target, "model": model},
            "internalParameters": {"source": source, "steps": [one.described() for one in steps]},
            "resolvedDependencies": list(found.values()),
        },
        "runDetails": {"builder": {"id": BUILDER}},
    }


def leaves(steps: list[Step]) -> dict[str, str]:
    """What no step made, by the role, or the file's name, in which one reads it."""
    made = {digest for one in steps for digest in one.outputs.values()}
    found = {}
    for one in steps:
        for role, value in one.fields.get("inputs", {}).items():
            listed = value if isinstance(value, list) else [[role, value]]
            for name, digest in listed:
                if digest not in made:
                    known = found.get(name, digest) == digest
                    found[name if known else f"{one.rule}: {name}"] = digest
    return found


def _resource(uri: str, digest: str) -> dict[str, Any]:
    kind, _, value = digest.partition(":")
    return {"uri": uri, "digest": {SLSA.get(kind, kind): value}}


def digest_of(resource: dict[str, Any]) -> str:
    """The digest of a resolved dependency, as the store writes it; empty where there is none."""
    ours = {word: kind for kind, word in SLSA.items()}
    return next(
        (f"{ours.get(word, word)}:{value}" for word, value in resource["digest"].items()), ""
    )
