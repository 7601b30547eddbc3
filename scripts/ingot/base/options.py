"""A step's command line, from the signature of its function: an option per parameter.

    def convert(
        gguf: Annotated[Path, "the file to write"],
        dtype: Annotated[str, "of the matrices", ("f16", "f32")] = "f16",
    ) -> None: ...

is `--gguf GGUF [--dtype {f16,f32}]`.  A list takes several values, a bool none, a dict JSON; what has no
default is required.  A dataclass is the options of its fields.  `flags` are what stands after `--`.
"""

import argparse
import dataclasses
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from ingot.base.entry import run

FLAGS = "flags"
EMPTY = inspect.Parameter.empty

Architecture = Annotated[str | None, "what config.json must say"]
TokenizerFiles = Annotated[list[Path], "its small files"]
ReadingFile = Annotated[Path, "by read_config.py"]
DigestsFile = Annotated[Path, "by digest_weights.py, in the dtype of the matrices"]
ReferenceFile = Annotated[Path, "by generate_reference.py"]
TextsFile = Annotated[Path, "by encode_texts.py"]
ScoresFile = Annotated[Path, "by score_corpus.py"]
Limits = Annotated[list[str], "name=value of a number, such as mean_kl=0.01"]
RecordFile = Annotated[Path, "the record to write"]


def step(function: Callable[..., int | None]) -> NoReturn:
    """Run a step, as the program that its file is."""
    run(lambda: call(function, sys.argv[1:]))


def call(function: Callable[..., Any], argv: list[str]) -> Any:
    """The function with what the command line says; the description is the first line of its file."""
    about = sys.modules[function.__module__].__doc__ or ""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    for option in _options(function):
        option.add(parser)
    return function(**_values(function, vars(parser.parse_args(argv))))


class _Option(NamedTuple):
    """A parameter: its type, what it is, the values that it may have, and its default."""

    name: str
    kind: Any
    what: str | None
    choices: Iterable | None
    default: Any

    @property
    def takes_paths(self) -> bool:
        """A class that is made of paths, such as a Checkpoint."""
        return hasattr(self.kind, "OPTION")

    def add(self, parser: argparse.ArgumentParser) -> None:
        if self.name == FLAGS:
            parser.add_argument(FLAGS, nargs="*", help=self.what)
            return
        found: dict[str, Any] = {"dest": self.name, "help": self.what}
        if self.default is EMPTY:
            found["required"] = True
        else:
            found["default"] = self.default
        if self.kind is bool:
            found["action"] = "store_true"
        elif self.takes_paths:
            found |= {"type": Path, "nargs": "+", "help": self.kind.OPTION}
        elif get_origin(self.kind) in (list, tuple):
            several = "+" if self.default is EMPTY else "*"
            found |= {"type": get_args(self.kind)[0], "nargs": several}
        elif get_origin(self.kind) is dict:
            found["type"] = json.loads
        else:
            found["type"] = self.kind
            if self.kind is Path and self.default is None:
                found["nargs"] = "?"  # rules name an input that is not asked for by no word
        if self.choices is not None:
            found |= {"choices": list(self.choices), "metavar": self.name.rstrip("_").upper()}
            found["help"] = f"{self.what}: {', '.join(map(str, self.choices))}"
        if self.default not in (EMPTY, None, "", (), False):
            found["help"] = f"{found['help'] or ''} (default: {self.default})".lstrip()
        parser.add_argument(f"--{self.name.rstrip('_').replace('_', '-')}", **found)

    def value(self, said: Any) -> Any:
        if said is None:
            return None
        if self.takes_paths:
            return self.kind(said)
        listed = get_origin(self.kind)
        return listed(said) if listed in (list, tuple) else said


def _options(what: Callable[..., Any]) -> Iterator[_Option]:
    """A dataclass's fields stand for a parameter of its type."""
    for one in _own(what):
        yield from _options(one.kind) if dataclasses.is_dataclass(one.kind) else (one,)


def _own(what: Callable[..., Any]) -> Iterator[_Option]:
    typed = what.__init__ if dataclasses.is_dataclass(what) else what
    hints = get_type_hints(typed, include_extras=True)
    for name, one in inspect.signature(what).parameters.items():
        kind, notes = _bare(hints[name])
        if get_origin(kind) in (types.UnionType, Union):  # X | None
            kind, more = _bare(get_args(kind)[0])
            notes = notes or more
        yield _Option(name, kind, *(*notes, None, None)[:2], one.default)


def _bare(hint: Any) -> tuple[Any, tuple]:
    """A type without its notes, and these."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return kind, tuple(notes)
    return hint, ()


def _values(what: Callable[..., Any], said: dict[str, Any]) -> dict[str, Any]:
    return {
        one.name: one.kind(**_values(one.kind, said))
        if dataclasses.is_dataclass(one.kind)
        else one.value(said[one.name])
        for one in _own(what)
    }
