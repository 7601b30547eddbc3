"""A record's numbers in few words: first how far from its model an artifact is, where that was measured."""

from typing import Any

FIRST = {  # of the numbers over a corpus: heading, and how one is shown
    "mean_kl": ("mean KL", "{:.2g}"),
    "same_top": ("same best token", "{:.2%}"),
}
LARGEST = 1e6  # records may be somebody's word: what none could have is no number


def first(checks: Any) -> dict[str, float]:
    """The numbers of FIRST that the checks of a record have, by their names."""
    found = checks.get("numbers") if isinstance(checks, dict) else None
    found = found if isinstance(found, dict) else {}
    return {
        name: found[name]
        for name in FIRST
        if number(found.get(name)) and 0 <= found[name] < LARGEST
    }


def number(value: Any) -> bool:
    """Is it a number, not yes or no?"""
    return isinstance(value, int | float) and not isinstance(value, bool)


def words(name: str, value: float) -> str:
    """One of FIRST, such as `mean KL 0.0019`."""
    heading, form = FIRST[name]
    return f"{heading} {form.format(value)}"


def few(checks: Any, most: int = 6) -> list[str]:
    """At most so many of a record's numbers: those of FIRST, then others in its own order and names."""
    others = checks.items() if isinstance(checks, dict) else ()
    said = [words(name, value) for name, value in first(checks).items()]
    for name, value in others:
        if number(value):
            said.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return said[:most]
