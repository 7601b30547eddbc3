"""Two reports beside each other: what changed, and what that did to the numbers and the cost."""

from collections.abc import Iterator
from typing import Any

from ingot.driver.cache.differences import differences


def against(now: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """`then` is the other report.  Actions are paired by rule and place."""
    return {
        "title": then["title"],
        "written": then["written"],
        "same": now["digest"] == then["digest"],
        "changes": list(_changes(now["actions"], then["actions"])),
        "numbers": list(_pairs(flat(then), flat(now))),
        "cost": list(_pairs(_cost(then), _cost(now))),
    }


def _changes(now: list[dict], then: list[dict]) -> Iterator[dict[str, Any]]:
    """The actions whose fields differ by themselves; those that only read other bytes come after them."""
    old, new = _by_rule(then), _by_rule(now)
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old or name not in new:
            yield {"action": name, "why": ["is new" if name in new else "is gone"]}
        elif not (old[name]["fields"] and new[name]["fields"]):
            yield {"action": name, "why": ["its fields are not on record"]}
        elif why := list(differences(old[name], new[name])):
            yield {"action": name, "why": why}


def _by_rule(actions: list[dict]) -> dict[str, dict]:
    """By the rule, with a number where it comes again: paths differ between two targets."""
    found: dict[str, dict] = {}
    for one in actions:
        name, count = one["rule"], 2
        while name in found:
            name, count = f"{one['rule']} ({count})", count + 1
        found[name] = one
    return found


def flat(report: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the verification, by dotted name."""
    found: dict[str, Any] = {}

    def visit(value: Any, place: str) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                visit(one, f"{place}.{name}".lstrip("."))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[place] = value

    visit(report["verification"].get("checks", {}), "")
    return found


def _cost(report: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": report["bytes"]}
    for name, one in _by_rule(report["actions"]).items():
        found |= {f"{name}: seconds": one["seconds"], f"{name}: memory": one["memory"]}
    return found


def _pairs(then: dict[str, Any], now: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in {**then, **now}:
        a, b = then.get(name), now.get(name)
        if a != b:
            ratio = (
                b / a if isinstance(a, int | float) and isinstance(b, int | float) and a else None
            )
            yield {"name": name, "then": a, "now": b, "ratio": ratio}
