"""The one exception for what cannot be done, and the one place that turns it into a line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO
from unicodedata import category

TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
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
    """`text` with every letter spelt out that a terminal acts on, but for those `kept`: control characters,
    what turns the direction of writing, separators of lines, and what cannot be written."""
    if text.isprintable():
        return text
    return "".join(c if c in kept or not _acts(c) else ascii(c)[1:-1] for c in text)


def _acts(letter: str) -> bool:
    return category(letter) in ("Cc", "Cs", "Zl", "Zp", "Cn", "Co") or letter in TURNS


class Harmless:
    """A text stream on which nothing that came from outside acts on a terminal."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(harmless(text, "\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def drawn_on(stream: TextIO | Harmless) -> TextIO:
    """The stream for our own drawing, of text that is harmless."""
    return stream.stream if isinstance(stream, Harmless) else stream


@contextmanager
def one_line(prefix: str = "") -> Iterator[None]:
    """End the program with a refusal as one line on stderr and exit status 1, without a traceback."""
    try:
        yield
    except Refused as reason:
        sys.exit(f"{prefix}{reason}")
