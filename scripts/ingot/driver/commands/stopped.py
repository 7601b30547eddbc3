"""A command that Ctrl-C ends: in one line, unless what it had started on this terminal has said so."""

import signal
import sys

STATUS = 128 + signal.SIGINT  # as shells have it


def by_ctrl_c(reason: KeyboardInterrupt) -> int:
    """The exit status.  A `reason` with words in it has been said."""
    if not reason.args:
        print("stopped by Ctrl-C", file=sys.stderr)
    return STATUS
