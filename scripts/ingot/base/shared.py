"""A folder that several users write: what is made in it has the folder's mode, whatever the umask."""

import contextlib
from pathlib import Path


def make_folder(path: Path, root: Path) -> None:
    """Create the folder `path`, below `root`, with the mode of `root`."""
    if path == root or path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    make_folder(path.parent, root)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        with contextlib.suppress(OSError):  # another user's
            path.chmod(root.stat().st_mode & 0o7777)


def share(path: Path, root: Path) -> None:
    """Let those read and write the file `path` who may read and write `root`."""
    with contextlib.suppress(OSError):
        path.chmod(root.stat().st_mode & 0o666)
