"""The actions on the way to what stands in a working folder, as the store's records say."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.store import leases
from ingot.store.records import Record, Store


def jobs(store: Store, targets: Iterable[str], folder: Path) -> list[dict[str, Any]]:
    """Each action on the way to `targets` that stand in `folder`, makers first: `rule`, `key`, `outputs`
    and `inputs` by their paths there, `recipe` and the `fields` that it is the digest of.

    Inputs are those that an action made.  One that is on no record here has `outputs` and no more than its
    `rule` and `key`.  Of a target that does not stand there, or not as it was stored, there is nothing.
    """
    return [
        job
        for target, record in stand(store, targets, folder).items()
        for job in of(store, record, target)
    ]


def stand(store: Store, targets: Iterable[str], folder: Path = Path()) -> dict[str, Record]:
    """The record of each target that stands in `folder` as some action gave it: of several, of one of that
    name, and of the latest used.  Those that runs in this folder asked for are looked at first."""
    left = {target: digest.of(folder / target) for target in targets if (folder / target).exists()}
    found: dict[str, Record] = {}
    asked = leases.keys(store, folder)
    for records in (store.of_keys(asked), store.records()):
        if not left:
            break
        gave: dict[str, list[Record]] = {}
        for record in sorted(records, key=lambda one: -one.used):
            for output in record.outputs:
                gave.setdefault(output["digest"], []).append(record)
        for target, name in left.items():
            title = Path(target).name
            some = gave.get(name, [])
            named = [one for one in some if title in [output["title"] for output in one.outputs]]
            if named or some:
                found[target] = (named or some)[0]
        left = {target: name for target, name in left.items() if target not in found}
    return found


def last(store: Store, title: str) -> Record | None:
    """The record that gave something of this name, whoever made it: of several, the latest used."""
    gave = [one for one in store.records() if title in [output["title"] for output in one.outputs]]
    return max(gave, key=lambda record: record.used, default=None)


def of(store: Store, record: Record, name: str = "") -> Iterator[dict[str, Any]]:
    """The actions on the way to a record, as `jobs` says them; its own comes last.

    `name` is what one of its outputs is called now: what one model's action gave may be another's, too.
    """
    begun: set[tuple[str, str, str]] = set()

    def visit(record: Record, name: str) -> Iterator[dict[str, Any]]:
        config = store.config(record)
        fields, way = config.get("fields", {}), config.get("about", {}).get("way", {})
        reads = way.get("reads", {})
        for path, (rule, key) in reads.items():
            if (rule, key, path) in begun:
                continue
            begun.add((rule, key, path))
            if maker := store.lookup(rule, key):
                yield from visit(maker, path)
            else:
                yield {"rule": rule, "key": key, "outputs": [path], "inputs": [], "recipe": ""}
        written = way.get("writes") or [f"artifacts/{one['title']}" for one in record.outputs]
        yield {
            "rule": record.rule,
            "key": record.key,
            "outputs": _named(written, name) if name else written,
            "inputs": list(reads),
            "recipe": way.get("recipe", ""),
            "fields": {**fields, "inputs": way.get("inputs", {})},
        }

    yield from visit(record, name)


def _named(written: list[str], name: str) -> list[str]:
    """What an action wrote, as it is called where one of it is `name`: the one that ends most like it."""
    if name in written:
        return written
    rest = max((_end(path, name) for path in written), key=len)
    old = next(path for path in written if path.endswith(rest))
    theirs, ours = old.removesuffix(rest), name.removesuffix(rest)
    return [ours + path.removeprefix(theirs) for path in written]


def _end(one: str, other: str) -> str:
    """The end that two texts share."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return one[len(one) - len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))) :]
