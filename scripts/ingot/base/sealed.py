"""An artifact that is a folder: sealed by a SHA256SUMS of all its files, which `sha256sum -c` reads."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from ingot.base import digest, memo
from ingot.base.atomic import replacing
from ingot.base.refused import Refused

SUMS = "SHA256SUMS"
SCRIPT = "#!"  # how a text begins that is run


@dataclass(frozen=True)
class Ours:
    """A file that nobody edits in place: a hard link of it costs no room and no time."""

    path: Path


Contents = dict[str, Ours | Path | str]  # of a folder, by name: what it links, copies, or writes
CHANGED = "the bundle was changed, or not copied whole: copy or build it again"


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
        raise Refused(f"{folder}: has no {SUMS}, expected a whole bundle; copy or build it again")
    pairs = [line.partition("  ") for line in sums.read_text(errors="replace").splitlines()]
    listed = {name: known for known, _, name in pairs}
    found = {path.relative_to(folder).as_posix(): path for path in files(folder)}
    if odd := sorted(set(found) ^ set(listed)):
        raise Refused(f"{folder / odd[0]}: in the folder or in {SUMS}, not in both; {CHANGED}")
    for name, known in listed.items():
        if file_digest(found[name]) != known:
            raise Refused(f"{folder / name}: its bytes are not those of {SUMS}; {CHANGED}")
    return file_digest(sums)


def fill(folder: Path, contents: Contents, hashed: dict[str, str] | None = None) -> None:
    """Write all that a folder shall hold, beside what it holds already, and seal it."""
    for name, content in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(
            missing_ok=True
        )  # of a step that was killed: a link, of a file that is not ours to write
        if isinstance(content, Ours):
            digest.link(content.path, target)
        elif isinstance(content, Path):
            shutil.copyfile(content, target)
        else:
            target.write_text(content)
            target.chmod(0o755 if content.startswith(SCRIPT) else 0o644)
    seal(folder, hashed)


def assemble(folder: Path, contents: Contents) -> None:
    """Write a folder that holds just this."""
    with replacing(folder) as partial:
        partial.mkdir()
        fill(partial, contents)


def hold(folder: Path, contents: Contents) -> int:
    """How many files a folder holds, when they are `contents` and no other; else one line, and the end."""
    found = {path.relative_to(folder).as_posix(): path for path in files(folder)}
    extra = {  # a server would take a folder for a model, a linked or an empty one too
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_dir() and (path.is_symlink() or not any(path.iterdir()))
    }
    if extra := sorted(set(found) - set(contents) | extra):
        raise Refused(f"{folder / extra[0]}: not part of what was assembled")
    if missing := sorted(set(contents) - set(found)):
        raise Refused(f"{folder / missing[0]}: missing, expected a part")
    for name, content in contents.items():
        path, source = found[name], content.path if isinstance(content, Ours) else content
        script = isinstance(source, str) and source.startswith(SCRIPT)
        if isinstance(source, str):
            wanted = hashlib.sha256(source.encode()).hexdigest()
        else:
            wanted = file_digest(source)
        if file_digest(path) != wanted:
            other = "what its sources give" if isinstance(source, str) else f"those of {source}"
            raise Refused(f"{path}: its bytes differ, expected {other}")
        if script and not path.stat().st_mode & 0o100:
            raise Refused(f"{path}: not executable, expected a script")
    return len(contents)


def files(folder: Path) -> list[Path]:
    """All files below `folder`, sorted, but for the sums and the orchestrator's own."""
    ours = {folder / SUMS, folder / digest.ORCHESTRATOR}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in ours)


def file_digest(path: Path) -> str:
    return digest.of(path).removeprefix("sha256:")
