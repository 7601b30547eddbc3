"""The one exception for what cannot be done, and the one place that turns it into a line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@contextmanager
def one_line(prefix: str = "") -> Iterator[None]:
    """End the program with a refusal as one line on stderr and exit status 1, without a traceback."""
    try:
        yield
    except Refused as reason:
        sys.exit(f"{prefix}{reason}")
