"""YAML that comes from outside: read within bounds, each key once, a fault by its line.

Other readers take the last of two entries of one name, and expand aliases of aliases without an end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused

LONGEST = 4 << 20  # letters
DEEPEST = 64  # collections in collections
MOST = 200_000  # values, with those that aliases repeat
PLAIN = 1 << 16  # letters of a value without quotes: 1:00:00:... is a number, in quadratic time
MERGE = "<<"


class NotYaml(ValueError):
    """What is wrong, and in which line, from 1; 0 where it is none's."""

    def __init__(self, problem: str, line: int = 0):
        super().__init__(problem)
        self.line = line


class Unfit(NotYaml):
    """It is YAML and is not taken; what is expected is said."""


def told(error: NotYaml, expected: str) -> str:
    return str(error) if isinstance(error, Unfit) else f"not YAML ({error}), expected {expected}"


def read(path: Path, expected: str) -> list[Any]:
    """The documents of a file.  Refused: no file, no UTF-8, no YAML; `expected` is what it should be."""
    try:
        found = path.read_bytes()
        return documents(found.decode())
    except PermissionError as error:
        raise Refused(f"{path}: {error.strerror}, expected to read it; chmod u+r {path}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}, expected {expected}; name another") from None
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{found[error.start]:02x}"
        raise Refused(
            f"{path}:{line}: not UTF-8 ({byte}), expected {expected}; save it as UTF-8"
        ) from None
    except NotYaml as error:
        place = f"{path}:{error.line}" if error.line else path
        raise Refused(f"{place}: {told(error, expected)}") from None


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


def documents(text: str) -> list[Any]:
    """NotYaml for what is none, for two entries of one name, and for what is too deep or too much."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    if len(text) > LONGEST:
        raise Unfit(f"{len(text)} letters, expected at most {LONGEST}")
    try:
        _hold(yaml, yaml.parse(text, loader))
        return list(yaml.load_all(text, loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or (str(error).splitlines() or ["no YAML"])[0]
        raise NotYaml(said, mark.line + 1 if mark else 0) from None
    except NotYaml:
        raise
    except (ValueError, TypeError, RecursionError) as error:  # a month 13; a list as a key
        raise NotYaml((str(error).splitlines() or [type(error).__name__])[0]) from None


@dataclass
class _Open:
    """A list or mapping that has not ended."""

    anchor: str | None
    before: int  # values before it
    names: set[str] | None  # of a mapping, so far
    children: int = 0


def _hold(yaml: Any, events: Any) -> None:
    """By its events, before anything is made of them; an alias counts as what it repeats."""
    sizes: dict[str | None, int] = {}  # values below an anchor
    inside: list[_Open] = []
    count = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionEndEvent):
            ended = inside.pop()
            sizes[ended.anchor] = count - ended.before
        if not isinstance(event, yaml.NodeEvent):
            continue
        alias, scalar = isinstance(event, yaml.AliasEvent), isinstance(event, yaml.ScalarEvent)
        if alias and event.anchor in [one.anchor for one in inside]:
            raise Unfit(f"*{event.anchor} is an alias of what holds it, expected of another", line)
        if scalar and event.implicit[0] and len(event.value) > PLAIN:
            raise Unfit(
                f"{len(event.value)} letters without quotes, expected at most {PLAIN}; quote them",
                line,
            )
        if inside:
            holder = inside[-1]
            if holder.names is not None and scalar and holder.children % 2 == 0:
                if event.value in holder.names and event.value != MERGE:
                    raise Unfit(
                        f"{event.value} is there twice, expected it once; rename or remove one",
                        line,
                    )
                holder.names.add(event.value)
            holder.children += 1
        if isinstance(event, yaml.CollectionStartEvent):
            names = set() if isinstance(event, yaml.MappingStartEvent) else None
            inside.append(_Open(event.anchor, count, names))
        count += sizes.get(event.anchor, 1) if alias else 1
        if len(inside) > DEEPEST:
            raise Unfit(f"more than {DEEPEST} collections in one another, expected fewer", line)
        if count > MOST:
            raise Unfit(
                f"more than {MOST} values, with those that its aliases repeat, expected fewer", line
            )
