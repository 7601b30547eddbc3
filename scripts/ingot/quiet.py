"""A toolchain's chatter goes to the log (stdout); the terminal (stderr) is for what matters."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def chatter_to_stdout() -> Iterator[None]:
    """Send file descriptor 2 to 1 meanwhile: libraries write there from C as well as from Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(1, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
