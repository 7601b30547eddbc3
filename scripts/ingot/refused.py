"""The one exception for what cannot be done, and the one place that turns it into a line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Refused(Exception):
    """What was asked for cannot be done: `<file or key>: <found>, <expected>; <what to do>`."""


@contextmanager
def one_line(prefix: str = "") -> Iterator[None]:
    """End the program with a refusal as one line on stderr and exit status 1, without a traceback."""
    try:
        yield
    except Refused as reason:
        sys.exit(f"{prefix}{reason}")


def end(text: str) -> None:
    """End the program from a signal handler, past every `except Exception` of other people's code."""
    sys.exit(text)


def run(main: Callable[[], int | None]) -> None:
    """How a program of ours is run by path: it ends with the exit status that `main` returns."""
    with one_line():
        sys.exit(main())
