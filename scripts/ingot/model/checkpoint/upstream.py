"""Another project's tool at work on a checkpoint: whatever stops it is one line."""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint

# of this machine, not of the checkpoint: whoever runs steps says them
OURS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)


@contextmanager
def in_its_words(tool: str, checkpoint: Checkpoint, *folders: Path) -> Iterator[None]:
    """Refused: whatever stops `tool`; `folders` are where it is given the checkpoint."""
    try:
        yield
    except BaseException as error:  # it ends the program, too
        stop = isinstance(error, Refused | MemoryError | KeyboardInterrupt)
        if stop or getattr(error, "errno", None) in OURS:
            raise
        said = said_by(error)
        for folder in folders:
            said = said.replace(f"{folder}/", "").replace(f"{folder}", "this")
        # else a bar would be drawn once more, behind our last word
        traceback.clear_frames(error.__traceback__)
        raise Refused(
            f"{checkpoint}: {tool} stops ({said:.200}), expected a checkpoint that it knows; its log "
            "says more"
        ) from None


def said_by(error: BaseException) -> str:
    """An error in one line; of an assertion without words, the line that holds it."""
    words = str(error) or (traceback.extract_tb(error.__traceback__)[-1].line or "")
    return " ".join(f"{type(error).__name__}: {words}".split())
