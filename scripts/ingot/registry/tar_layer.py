"""A file as a layer of an image: a tar of one member around its bytes, which is never stored.

The same on every machine: mode, no owner, no time.  Image volumes, KServe's fetcher and container tools
unpack such layers below /models/.
"""

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
END = bytes(2 * BLOCK)
READ = 1 << 20
BELOW = "models/"


@dataclass(frozen=True)
class TarLayer:
    """The layer of one file of an artifact; `name` is its path in there, with slashes."""

    name: str
    size: int  # of the file
    source: Path
    executable: bool = False

    @property
    def head(self) -> bytes:
        member = tarfile.TarInfo(BELOW + self.name)
        member.size, member.mode = self.size, 0o755 if self.executable else 0o644
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8")

    @property
    def tail(self) -> bytes:
        return bytes(-self.size % BLOCK) + END

    @property
    def nbytes(self) -> int:
        return len(self.head) + self.size + len(self.tail)

    def open(self) -> "TarFile":
        return TarFile(self)

    def digest(self) -> str:
        """sha256:<hex> of the tar; reads the file."""
        found = hashlib.sha256()
        with self.open() as file:
            while data := file.read(READ):
                found.update(data)
        return f"sha256:{found.hexdigest()}"


class TarFile:
    """The tar as a file object, read from its start."""

    def __init__(self, layer: TarLayer):
        self.parts = [layer.head, None, layer.tail]
        self.file, self.left = layer.source.open("rb", buffering=0), layer.size

    def __enter__(self) -> "TarFile":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    def read(self, size: int = READ) -> bytes:
        while self.parts:
            part = self.parts[0]
            if part is None:
                data = self.file.read(min(size, self.left)) if self.left else b""
                self.left -= len(data)
                if data:
                    return data
                if self.left:
                    raise OSError(f"{self.file.name}: ends {self.left} bytes early")
            elif part:
                data, self.parts[0] = part[:size], part[size:]
                return data
            self.parts.pop(0)
        return b""
