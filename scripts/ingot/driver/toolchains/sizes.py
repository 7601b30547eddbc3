"""What building a toolchain takes: bytes by envs/sizes.json, seconds by what past ones took here."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

FILE = "envs/sizes.json"  # by bench/toolchains.py
RATE = 30e6  # bytes of packages per second, fetched and unpacked, where none was built yet
LARGE = 20e6  # bytes, below which a past one says nothing of the rate


@dataclass(frozen=True)
class Size:
    """Of a toolchain that is not there yet: bytes to download, bytes on disk, seconds."""

    download: int
    disk: int
    seconds: float


def of(root: Path, name: str, cuda: bool, cache: Path) -> Size | None:
    """Of toolchain `name`, with torch's CUDA build or without; `cache` holds those built before.

    None of one that nobody has measured, such as a new one.
    """
    known = _known(root).get(name)
    if known is None:
        return None
    download, disk = expected(root, name, cuda)
    return Size(download, disk, download / _rate(cache) + known["compile"] + 1)


def note(folder: Path, download: int, seconds: float, compile_seconds: float) -> None:
    """Leave in a built toolchain what it took, for the next one's forecast."""
    found = {
        "download": download,
        "seconds": round(seconds, 1),
        "compile": round(compile_seconds, 1),
    }
    (folder / "took.json").write_text(json.dumps(found))


def took(folder: Path) -> dict[str, float]:
    return json.loads((folder / "took.json").read_text())


def expected(root: Path, name: str, cuda: bool) -> tuple[int, int]:
    """Bytes to download and on disk; zero where nobody has measured them."""
    known = _known(root).get(name, {})
    kind = "cuda_" * cuda
    return known.get(f"{kind}download", 0), known.get(f"{kind}disk", 0)


def compile_seconds(root: Path, name: str) -> int:
    """What compiling it took on two cores; 1 of one that compiles nothing, or that nobody has measured."""
    return _known(root).get(name, {}).get("compile") or 1


@functools.cache
def _known(root: Path) -> dict[str, dict[str, int]]:
    place = root / FILE
    return json.loads(place.read_text()) if place.is_file() else {}


def _rate(cache: Path) -> float:
    """Bytes per second of the largest toolchain in `cache`."""
    best = (0, RATE)
    for place in cache.glob("*/took.json"):
        try:
            found = json.loads(place.read_text())
            pace = found["download"] / max(found["seconds"] - found["compile"], 0.1)
            best = max(best, (found["download"], pace))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return best[1] if best[0] > LARGE else RATE
