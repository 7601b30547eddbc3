"""The one exception for what cannot be done, and the one place that turns it into a line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

LONGEST = 4000  # characters of a message: what is printed may hold what came from outside


class Refused(Exception):
    """What was asked for cannot be done: `<file or key>: <found>, <expected>; <what to do>`.

    `words` are another program's own, in lines of theirs below ours.
    """

    def __init__(self, text: str, words: str = ""):
        lines = [printable(line) for line in (text, *words[-LONGEST:].expandtabs(4).splitlines())]
        super().__init__("\n".join(lines))


def printable(text: str) -> str:
    """`text` as one line that no terminal acts on, its middle left out where it is very long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return harmless(text)


def harmless(text: str, kept: str = "") -> str:
    """`text` with every letter spelt out that a terminal acts on, but for those `kept`."""
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class Harmless:
    """A text stream on which nothing that came from outside acts on a terminal."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(harmless(text, "\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def one_line(prefix: str = "") -> Iterator[None]:
    """End the program with a refusal as one line on stderr and exit status 1, without a traceback."""
    try:
        yield
    except Refused as reason:
        sys.exit(f"{prefix}{reason}")
