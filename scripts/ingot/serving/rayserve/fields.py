"""Walk a document against a table of fields: every name that is unknown, every value of another type.

Components that read such documents ignore what they do not know: a misspelt field has no effect.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "int-or-string": (int, str), "object": (dict,),
}  # fmt: skip
FREE = ("metadata",)  # Kubernetes' own, which the definition leaves out


@dataclass(frozen=True)
class Fault:
    """One fault, in one line.  `shape`: of another type, so that nothing more can be asked of it."""

    path: str
    what: str
    shape: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def walk(found: Any, form: Any, path: str, objects: dict[str, dict]) -> Iterator[Fault]:
    """One line per fault.  A form is a name in `objects`, a type, a list of one form, or {"": form}."""
    if form == "any" or found is None:
        return
    if isinstance(form, list):
        if not isinstance(found, list):
            yield Fault(path, f"{said(found)}, expected a list", shape=True)
            return
        for number, one in enumerate(found):
            yield from _item(one, form[0], f"{path}[{number}]", objects)
    elif isinstance(form, dict) or form in objects:
        if not isinstance(found, dict):
            yield Fault(path, f"{said(found)}, expected fields", shape=True)
            return
        yield from _fields(
            found, objects.get(form, form) if isinstance(form, str) else form, path, objects
        )
    elif form in KINDS:
        wrong = not isinstance(found, KINDS[form]) or (
            isinstance(found, bool) and form != "boolean"
        )
        if wrong:
            yield Fault(path, f"{said(found)}, expected {form}", shape=True)
    elif found not in form.split("|"):
        yield Fault(path, f"{said(found)}, expected one of {form.replace('|', ', ')}")


def _item(found: Any, form: Any, path: str, objects: dict[str, dict]) -> Iterator[Fault]:
    """Of a list or a map, where null is not the same as nothing."""
    if found is None and form != "any":
        yield Fault(path, "null, expected a value", shape=True)
    yield from walk(found, form, path, objects)


def _fields(found: dict, fields: dict, path: str, objects: dict[str, dict]) -> Iterator[Fault]:
    if "" in fields:
        for name, one in found.items():
            yield from _item(one, fields[""], f"{path}.{name}", objects)
        return
    known = {name.rstrip("*"): form for name, form in fields.items()}
    for name, one in found.items():
        if name in FREE:
            continue
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Fault(f"{path}.{name}", f"unknown, and has no effect{hint}")
        else:
            yield from walk(one, known[name], f"{path}.{name}", objects)
    for name in fields:
        if name.endswith("*") and found.get(name[:-1]) is None:
            yield Fault(f"{path}.{name[:-1]}", "missing, expected a value", shape=True)


def said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
