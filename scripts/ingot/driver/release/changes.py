"""What changed between two releases: which cells, by which field of which action, and in their numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingot.driver.cache.differences import differences
from ingot.driver.release.document import Document
from ingot.driver.show import quality

MADE = "recipe:"  # an input that another action makes


@dataclass(frozen=True)
class Change:
    """One cell.  `why` is empty where another recipe gave the same bytes, or none is known."""

    title: str
    word: str  # new, gone, changed, same bytes, not built
    why: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


def changes(old: Document, new: Document) -> list[Change]:
    """Of each cell that is not the same in both, in the order of their names."""
    found = []
    for title in sorted({*old.cells, *new.cells}):
        a, b = old.cells.get(title), new.cells.get(title)
        if a is None or b is None:
            found.append(Change(title, "new" if a is None else "gone"))
            continue
        built = bool(a["digest"] and b["digest"])
        if a["recipe"] != b["recipe"] or (built and a["digest"] != b["digest"]):
            why = tuple(dict.fromkeys(causes(old, new, a["recipe"], b["recipe"], set())))
            same = "same bytes" if a["digest"] == b["digest"] else "changed"
            both = built and a["checks"] and b["checks"]
            numbers = (*_first(a, b), *_numbers(a["checks"], b["checks"])) if both else ()
            found.append(Change(title, same if built else "not built", why, numbers))
    return found


def causes(
    old: Document, new: Document, a: str, b: str, seen: set[tuple[str, str]]
) -> Iterator[str]:
    """The fields in which two recipes differ, or those that they are made from; the first ones first."""
    then, now = old.actions.get(a), new.actions.get(b)
    if a == b or then is None or now is None or (a, b) in seen:
        return
    seen.add((a, b))
    for role in sorted({*then["fields"].get("inputs", {}), *now["fields"].get("inputs", {})}):
        pairs = zip(
            _made(then["fields"]["inputs"].get(role)),
            _made(now["fields"]["inputs"].get(role)),
            strict=False,
        )
        for before, after in pairs:
            yield from causes(old, new, before, after, seen)
    own = [_sources(one["fields"]) for one in (then, now)]
    for line in differences({"fields": own[0]}, {"fields": own[1]}):
        yield f"{now['rule']}: {line}".replace(f": rule {now['rule']}:", ":")


def _made(value: Any) -> list[str]:
    """The recipes among what an input holds."""
    listed = [one for _, one in value] if isinstance(value, list) else [value]
    return [one.split(":")[1] for one in listed if isinstance(one, str) and one.startswith(MADE)]


def _sources(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without what other actions make: those are told of by their own."""
    kept = {}
    for role, value in fields.get("inputs", {}).items():
        if isinstance(value, list):
            kept[role] = [[name, MADE if one.startswith(MADE) else one] for name, one in value]
        else:
            kept[role] = MADE if value.startswith(MADE) else value
    return {**fields, "inputs": kept}


def _first(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """How far two cells are from their model, where that differs: in words, as everywhere."""
    a, b = quality.first(then["checks"]), quality.first(now["checks"])
    for name, (heading, form) in quality.FIRST.items():
        old, new = a.get(name), b.get(name)
        if old != new:
            said = ["none" if one is None else form.format(one) for one in (old, new)]
            if said[0] == said[1]:
                said = [_short(old), _short(new)]
            yield f"{heading} {said[0]} → {said[1]}"


def _numbers(then: Any, now: Any, place: str = "") -> Iterator[str]:
    """The others of the numbers of two verification records that differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted({*then, *now}):
            if not (place == "numbers" and name in quality.FIRST):
                yield from _numbers(then.get(name), now.get(name), f"{place}.{name}".lstrip("."))
    elif then != now and not isinstance(then, list) and not isinstance(now, list):
        yield f"{place} {_short(then)} → {_short(now)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
