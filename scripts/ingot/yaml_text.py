"""YAML that comes from outside: read within bounds, each key once, a fault by its line.

Other readers take the last of two entries of one name, and expand aliases of aliases without an end.
"""

from pathlib import Path
from typing import Any

from ingot.refused import Refused

LONGEST = 4 << 20  # bytes
DEEPEST = 64  # collections in collections
MOST = 200_000  # values, with those that aliases repeat
MERGE = "tag:yaml.org,2002:merge"


class NotYaml(ValueError):
    """What is wrong, and in which line, from 1; 0 where it is none's."""

    def __init__(self, problem: str, line: int = 0):
        super().__init__(problem)
        self.line = line


def read(path: Path, expected: str) -> list[Any]:
    """The documents of a file.  Refused: no file, no YAML; `expected` is what it should have been."""
    try:
        return documents(path.read_bytes())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}, expected {expected}; name another") from None
    except NotYaml as error:
        place = f"{path}:{error.line}" if error.line else path
        raise Refused(f"{place}: not YAML ({error}), expected {expected}") from None


def only(path: Path, expected: str) -> Any:
    """The document of a file; an empty mapping where it has none.  Refused also: several."""
    found = read(path, expected)
    if len(found) > 1:
        raise Refused(f"{path}: {len(found)} documents, expected {expected}, one; leave one")
    return (found or [None])[0] or {}


def value(text: str) -> Any:
    """A value as a line of YAML has it, such as of an option; what is none is a text."""
    try:
        return (documents(text) or [None])[0]
    except NotYaml:
        return text


def documents(text: str | bytes) -> list[Any]:
    """NotYaml for what is none, for two entries of one name, and for what is too deep or too much."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        def construct_mapping(self, node, deep=False):
            names = [
                key.value
                for key, _ in node.value
                if key.tag != MERGE and isinstance(key.value, str)
            ]
            for number, name in enumerate(names):
                if name in names[:number]:
                    mark = next(
                        key for key, _ in reversed(node.value) if key.value == name
                    ).start_mark
                    said = f"{name} is there twice; rename or remove one"
                    raise yaml.constructor.ConstructorError(None, None, said, mark)
            return super().construct_mapping(node, deep)

    if len(text) > LONGEST:
        raise NotYaml(f"{len(text)} bytes, at most {LONGEST}")
    try:
        _stop_on_too_much(yaml, yaml.parse(text, base))
        return list(yaml.load_all(text, Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or (str(error).splitlines() or ["no YAML"])[0]
        raise NotYaml(said, mark.line + 1 if mark else 0) from None
    except NotYaml:
        raise
    except (
        ValueError,
        TypeError,
        RecursionError,
    ) as error:  # a date of month 13; a list as key
        raise NotYaml((str(error).splitlines() or [type(error).__name__])[0]) from None


def _stop_on_too_much(yaml: Any, events: Any) -> None:
    """By its events, before anything is made of them: an alias counts as what it repeats."""
    known: dict[str, int] = {}  # values below an anchor
    inside: list[
        tuple[str | None, int]
    ] = []  # anchors of open collections, and the count before each
    count = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, count))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            known[anchor or ""] = count - before + 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, _ in inside]:
                raise NotYaml(f"*{event.anchor} is an alias of what holds it", line)
            count += known.get(event.anchor, 1)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            count += 1
        if len(inside) > DEEPEST:
            raise NotYaml(f"more than {DEEPEST} collections in one another", line)
        if count > MOST:
            raise NotYaml(f"more than {MOST} values, with those that its aliases repeat", line)
