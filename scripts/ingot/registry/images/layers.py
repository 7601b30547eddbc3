"""A layer of an image: a tar whose bytes follow from the names, modes and bytes of its files alone."""

import hashlib
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.registry.transfer import Content

BLOCK = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file of a layer: `source` is a file, or its bytes, or, of a link, where it leads to."""

    name: str  # without a leading slash
    source: Path | bytes | str
    executable: bool = False


class Hashing:
    """A file that knows the SHA-256 and the size of what was written to it."""

    def __init__(self, path: Path):
        self.file, self.found, self.size = path.open("wb"), hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.found.update(data)
        self.size += len(data)
        return self.file.write(data)


def write(members: Iterable[Member], folder: Path) -> Content:
    """The layer as a file of `folder`, named by its digest.  No owner, no time, no compression: with it
    the bytes would follow from a library's version, too."""
    partial = folder / ".layer.partial"
    out: Any = Hashing(partial)
    with out.file, tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        seen: set[str] = set()
        for member in sorted(members, key=lambda one: one.name):
            for parent in reversed(Path(member.name).parents[:-1]):
                if str(parent) not in seen:
                    seen.add(str(parent))
                    tar.addfile(_info(str(parent), tarfile.DIRTYPE, 0o755))
            _add(tar, member)
    digest = f"sha256:{out.found.hexdigest()}"
    place = folder / out.found.hexdigest()
    partial.replace(place)
    return Content(digest, out.size, place)


def _add(tar: tarfile.TarFile, member: Member) -> None:
    info = _info(member.name, tarfile.REGTYPE, 0o755 if member.executable else 0o644)
    if isinstance(member.source, str):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.source, 0o777
        tar.addfile(info)
    elif isinstance(member.source, bytes):
        import io

        info.size = len(member.source)
        tar.addfile(info, io.BytesIO(member.source))
    else:
        info.size = member.source.stat().st_size
        with member.source.open("rb") as file:
            tar.addfile(info, file)


def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info
