"""An artifact built once more from what its provenance names, and checked against it step by step.

Nothing is taken from a store or a shared cache: only the sources and the toolchains' locks are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.fields import held
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import build as run
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats.rows import VARIES
from ingot.driver.release.on_record import ELSEWHERE, OnRecord
from ingot.registry.published import files
from ingot.store.damage import texts
from ingot.store.records import Store

UNREAD = ("prompts", "corpus")  # by what makes an artifact; they are for its verification
STEP = {
    "rule": str, "key": str, "outputs": {str: str}, "code": {str: str}, "lock": {str: str},
    "params?": {}, "wildcards?": {},
}  # fmt: skip
PREDICATE = {
    "buildDefinition": {
        "externalParameters": {"target": str, "model": {str: {}}},
        "internalParameters": {"source": str, "steps": [STEP]},
    }
}


@dataclass(frozen=True)
class Recipe:
    """What a statement of provenance says, as far as it is needed to build again."""

    target: str
    model: dict[str, dict[str, Any]]
    steps: list[dict[str, Any]]
    source: str

    @property
    def name(self) -> str:
        return next(iter(self.model), "")


@dataclass(frozen=True)
class Verdict:
    target: str
    same: list[str]  # files whose bytes are the same, of every step
    differs: list[str]  # the first ones that are not: what they were made from is the same
    why: str = ""  # that was expected


def recipe(what: str, statement: dict[str, Any], title: str, catalogue: dict) -> Recipe:
    """Refused: provenance that is not of our making, or not of an artifact called `title`."""
    held(what, statement["predicate"], PREDICATE)
    build = statement["predicate"]["buildDefinition"]
    inside, outside = build["internalParameters"], build["externalParameters"]
    found = Recipe(outside["target"], outside["model"], inside["steps"], inside["source"])
    if not found.steps or title not in found.steps[-1]["outputs"]:
        raise Refused(
            f"{what}: no step of its provenance makes {title}, expected the last; not taken"
        )
    parts = targets.parsed(found.target, {**catalogue, "models": found.model})
    if (
        found.target != targets.FOLDER + title
        or parts is None
        or list(found.model) != [parts.model]
    ):
        raise Refused(f"{what}: says it is {found.target!r:.80}, expected {title}; not taken")
    for path in texts(found.model):
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            raise Refused(f"{what}: names {path!r:.80}, expected no path outside; not taken")
    return found


def same_tools(root: Path, found: Recipe) -> None:
    """Refused where this checkout is another than the one that built it."""
    for step in found.steps:
        for kind, folder in (("code", "scripts"), ("lock", "envs")):
            for name, expected in step[kind].items():
                path = root / folder / name
                if not path.is_file() or digest.of(path) != expected:
                    source = found.source.removeprefix("git+")
                    where = (
                        f"git checkout {source}" if source != found.source else "its own checkout"
                    )
                    raise Refused(
                        f"{folder}/{name}: not what {found.target} was built by, expected "
                        f"{expected[:19]}; reproduce it in {where}"
                    )


def expected(found: Recipe) -> str:
    """Why its bytes are not the same each time; empty where they are."""
    size = int(
        "".join(c for c in found.target.partition("_tp")[2].partition(".")[0] if c.isdigit()) or 1
    )
    rules = {step["rule"] for step in found.steps}
    reasons = [why for step, (least, why) in VARIES.items() if step in rules and size >= least]
    return "; ".join(reasons)


def build(root: Path, found: list[Recipe], folder: Path, source: Path | None) -> None:
    """All targets, in `folder`, with a store of its own.  Refused where one is not built."""
    import yaml

    models: dict[str, Any] = {}
    for one in found:
        models |= one.model
    for entry in [*models.values()]:
        adapter = entry.get("adapter")
        if adapter and "lora" in adapter:
            raise Refused(
                f"{found[0].target}: made from an adapter of its builder's, expected one of the hub; it "
                "cannot be built here"
            )
        if adapter:  # its entry has all of its base's
            models[adapter["base"]] = {key: one for key, one in entry.items() if key != "adapter"}
    for entry in models.values():
        if "hub" not in entry:
            path = source or (entry.get("path") and root / entry["path"])
            if not path or not path.is_dir():
                raise Refused(
                    f"{found[0].target}: made from a checkpoint of its builder's, expected it here; name "
                    "its folder by --source"
                )
            entry["path"] = str(path.absolute())
        for key in [key for key, value in entry.items() if value == ELSEWHERE]:
            if key not in UNREAD:
                raise Refused(
                    f"{found[0].target}: {key}: is a file of its builder's, expected one that is in the "
                    "checkout; it cannot be built here"
                )
            del entry[key]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": models}))
    own = {"INGOT_STORE": str(folder.absolute() / "store"), "INGOT_REMOTE_POLICY": "off"}
    wanted = list(dict.fromkeys(one.target for one in found))
    run(root, wanted, "models.yaml", folder, **own)


def verdict(root: Path, found: Recipe, published: dict[str, str], folder: Path) -> Verdict:
    """Of what was built in `folder`: each step's files are checked against the provenance's, and the
    artifact's against those that were `published`, digests by name."""
    store, catalogue = Store(folder.absolute() / "store"), str(folder.absolute() / "models.yaml")
    off = {"INGOT_REMOTE_POLICY": "off"}
    record = OnRecord(root, store, [found.target], catalogue, cwd=folder, **off)
    steps = record.steps(found.target)
    made: dict[str, str] = {}
    for one in steps:
        made |= {f"{one.rule}: {title}": value for title, value in one.outputs.items()}
    same, differs = [], []
    for step in found.steps:
        theirs = {f"{step['rule']}: {title}": value for title, value in step["outputs"].items()}
        odd = [name for name, value in theirs.items() if made.get(name) != value]
        same += [name for name in theirs if name not in odd]
        differs += odd if not differs else []
    built = files(record.output(found.target), record.outputs(found.target))
    here = {one["path"]: one["digest"] for one in built}
    if not differs:
        odd = [
            name for name in sorted({*here, *published}) if here.get(name) != published.get(name)
        ]
        differs = [f"the published {name}" for name in odd]
    return Verdict(found.target, same, differs, expected(found))
