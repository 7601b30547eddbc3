"""JSON that comes from outside: read, and checked for the fields, types and bounds that are expected."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused

SHOWN = 80  # characters of a value that a message shows


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`; true is none, and neither is 2.0."""

    low: int = 1
    high: int = 2**31 - 1

    def holds(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Number:
    """A finite number that float32 can hold, above `above` where that is given."""

    above: float = -math.inf

    def holds(self, value: Any) -> bool:
        if type(value) not in (int, float):
            return False
        return abs(value) <= 3.4028234e38 and value > self.above

    def __str__(self) -> str:
        return "a number" if self.above == -math.inf else f"a number above {self.above:g}"


def read_json(path: Path, expected: Any = None) -> dict:
    """The JSON object at `path`, checked against `expected`, as `held` takes it.

    Refused when it is missing, unreadable, no regular file, no JSON, or no such object.
    """
    try:
        if not path.is_file():  # a FIFO would be waited for
            if path.exists():
                raise Refused(f"{path}: no plain file, expected a JSON file; put one there")
            raise FileNotFoundError
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, RuntimeError) as error:
        if isinstance(error, RecursionError):
            raise Refused(f"{path}: JSON nested too deep; fetch or copy it again") from None
        raise Refused(
            f"{path}: missing, expected a JSON file; fetch or copy the checkpoint again"
        ) from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}, expected to read it; see ls -l") from None
    except ValueError as error:
        raise Refused(f"{path}: not JSON ({error}); fetch or copy it again") from None
    if not isinstance(found, dict):
        raise Refused(f"{path}: holds a {type(found).__name__}, expected a JSON object")
    if expected is not None:
        held(path, found, expected)
    return found


def there(look: Callable[[], bool]) -> bool:
    """What `look`, such as a path's `exists`, says; true where it may not: who reads the file says why."""
    try:
        return look()
    except OSError:
        return True


def json_of(what: Path | str, text: bytes | str, expected: Any) -> Any:
    """What a text of JSON holds.  Refused: a text that is none, and a value that `held` refuses."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    held(what, found, expected)
    return found


def held(path: Path | str, value: Any, expected: Any, place: str = "") -> None:
    """Refuse `value` unless it is as `expected`, naming the field.

    `expected` is `str`, `bool`, a Whole, a Number or None; a tuple of alternatives; `[of]`, a list;
    `{str: of}`, an object of any names; or an object by its fields' names, those that may be absent
    with a "?" behind.  Fields that it does not name are not looked at.
    """
    if reason := _misfit(value, expected, place):
        raise Refused(f"{path}: {reason}")


def _misfit(value: Any, expected: Any, place: str) -> str | None:
    if isinstance(expected, dict) and isinstance(value, dict):
        return _in_object(value, expected, place)
    if isinstance(expected, list) and isinstance(value, list):
        items = ((f"{place}[{number}]", item) for number, item in enumerate(value))
        return next(filter(None, (_misfit(item, expected[0], name) for name, item in items)), None)
    if isinstance(expected, tuple):
        found = [_misfit(value, one, place) for one in expected]
        if None in found:
            return None
        inner = [one for one in found if one and not one.startswith(f"{place} is ")]
        return inner[0] if inner else _is_not(value, expected, place)
    if expected is str:
        fits = _encodable(value)
    elif expected is bool or expected is None:
        fits = value is None if expected is None else isinstance(value, bool)
    else:
        fits = not isinstance(expected, dict | list) and expected.holds(value)
    return None if fits else _is_not(value, expected, place)


def _in_object(value: dict, expected: dict, place: str) -> str | None:
    dot = f"{place}." if place else ""
    if str in expected:
        for name, item in value.items():
            if not _encodable(name):
                return f"{place} has a name that is no text, {name!a}"
            if reason := _misfit(item, expected[str], f"{dot}{name}"):
                return reason
        return None
    for name, of in expected.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                return f"{dot}{key} is missing, expected {_words(of)}"
        elif reason := _misfit(value[key], of, f"{dot}{key}"):
            return reason
    return None


def _is_not(value: Any, expected: Any, place: str) -> str:
    if value is None:
        return f"{place} is missing, expected {_words(expected)}"
    text = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return f"{place} is {text[:SHOWN]}, expected {_words(expected)}"


def _words(expected: Any) -> str:
    if isinstance(expected, tuple):
        return " or ".join(map(_words, expected))
    if isinstance(expected, list):
        return f"a list of which each is {_words(expected[0])}"
    if isinstance(expected, dict):
        return "an object"
    return {str: "a text", bool: "true or false", None: "null"}.get(expected) or str(expected)


def _encodable(text: Any) -> bool:
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
