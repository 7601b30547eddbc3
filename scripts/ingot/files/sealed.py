"""An artifact that is a folder: sealed by a SHA256SUMS of all its files, which `sha256sum -c` reads."""

from pathlib import Path

from ingot.files import digest, memo
from ingot.refused import Refused

SUMS = "SHA256SUMS"


def seal(folder: Path, hashed: dict[str, str] | None = None) -> None:
    """Write SHA256SUMS.  `hashed` are the files, by name, whose SHA-256 the writer knows already."""
    lines = []
    for path in files(folder):
        name = path.relative_to(folder).as_posix()
        if known := (hashed or {}).get(name):
            memo.remember(memo.stamp_of(path), f"sha256:{known}")
        lines.append(f"{file_digest(path)}  {name}\n")
    (folder / SUMS).write_text("".join(lines))


def sealed(folder: Path) -> str:
    """SHA-256 of the folder's SHA256SUMS, once each line of it holds; else one line, and the end."""
    sums = folder / SUMS
    if not sums.is_file():
        raise Refused(f"{folder}: has no {SUMS}, expected a folder that was built; build it again")
    pairs = [line.partition("  ") for line in sums.read_text(errors="replace").splitlines()]
    listed = {name: known for known, _, name in pairs}
    found = {path.relative_to(folder).as_posix(): path for path in files(folder)}
    if odd := sorted(set(found) ^ set(listed)):
        raise Refused(f"{folder / odd[0]}: in the folder or in {SUMS}, not in both; build it again")
    for name, known in listed.items():
        if file_digest(found[name]) != known:
            raise Refused(f"{folder / name}: its bytes are not those of {SUMS}; build it again")
    return file_digest(sums)


def files(folder: Path) -> list[Path]:
    """All files below `folder`, sorted, but for the sums and the orchestrator's own."""
    ours = {folder / SUMS, folder / digest.ORCHESTRATOR}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in ours)


def file_digest(path: Path) -> str:
    return digest.of(path).removeprefix("sha256:")
