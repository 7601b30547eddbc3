"""A hub model's list of files, at one commit: what the hub says is believed only in this form."""

from pathlib import Path
from typing import Any

from ingot.base.fields import Whole, held, read_json
from ingot.base.refused import Refused

SIZE = Whole(0, 2**63 - 1)
LISTING = {
    "hub": str,
    "revision": str,
    "files": {str: {"size": SIZE, "sha256?": str, "git_sha1?": str}},
}
HASHES = {"sha256": 64, "git_sha1": 40}  # the hub's own, and their hex digits
MOST = 100_000  # files of one model


def read_listing(path: Path) -> dict[str, Any]:
    """The listing at `path`: hub, revision, and by name each file's size and hash."""
    found = read_json(path, LISTING)
    check(path, found["files"])
    return found


def check(where: Path | str, files: dict[str, dict]) -> None:
    """Refused unless each file has a plain name, a size, and one hash in hex digits."""
    held(where, {"files": files}, {"files": LISTING["files"]})
    if len(files) > MOST:
        raise Refused(f"{where}: {len(files)} files, expected at most {MOST}; check hub:")
    for name, entry in files.items():
        if not safe_name(name):
            raise Refused(
                f"{where}: file name {name!r} leaves its folder, expected a plain name; not fetched"
            )
        hashes = {word: entry[word] for word in HASHES if word in entry}
        right = [_hex(text, HASHES[word]) for word, text in hashes.items()]
        if right != [True]:
            raise Refused(
                f"{where}: {name} has the hashes {hashes}, expected 64 hex digits of SHA-256 or 40 of "
                "git's SHA-1; is HF_ENDPOINT a hub?"
            )


def _hex(text: str, digits: int) -> bool:
    return len(text) == digits and set(text) <= set("0123456789abcdef")


def safe_name(name: str) -> bool:
    """Whether a file of that name stays inside the folder that it is put in."""
    parts = name.replace("\\", "/").split("/")
    inside = not name.startswith(("/", "\\")) and ".." not in parts and ":" not in parts[0]
    return inside and name.isprintable()
