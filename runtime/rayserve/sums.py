"""The bundle's files against its SHA256SUMS: a file that was changed or cut is not served."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUMS = "SHA256SUMS"
CHUNK = 1 << 20


def hold(folder: Path, below: str = "") -> int:
    """How many files are right: all of the bundle, or those in one folder.  RuntimeError: one line."""
    lines = (folder / SUMS).read_text().splitlines()
    pairs = [line.partition("  ")[::2] for line in lines]
    listed = {name: sum_ for sum_, name in pairs if name.startswith(f"{below}/" if below else "")}
    if not listed:
        raise RuntimeError(f"{folder / below}: not in {SUMS}, expected files; copy it again")
    pool = ThreadPoolExecutor(4)
    try:
        found = pool.map(lambda name: digest(folder / name), listed)
        for name, own in zip(listed, found, strict=True):
            if own != listed[name]:
                what = "its bytes are not those" if own else "missing, expected what was"
                raise RuntimeError(f"{folder / name}: {what} built; copy the bundle again")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who is told to end waits for no file
    return len(listed)


def digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
    except OSError:
        return ""
    return found.hexdigest()
