"""Get a published artifact: `ingot pull oci://host/repository:tag [TARGET]`.

TARGET is a new name for it, or a folder that it goes into under its own: one that exists, or ends in /.
Every byte is checked against its digest, every name stays in the folder, and nothing has its name before
all of it has come.  With --key, or INGOT_TRUSTED_KEYS, only what that key signed.
"""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.registry import reference


def add_reference(parser: ArgumentParser) -> None:
    """What the commands share that read a registry."""
    parser.add_argument(
        "--key", type=Path, action="append", default=[], metavar="FILE",
        help="a public key, or a folder of them (default: INGOT_TRUSTED_KEYS)",
    )  # fmt: skip
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("reference", help="oci://host/repository:tag, or @sha256:<hex>")
    parser.add_argument(
        "target", nargs="?",
        help="a new name for it, or a folder that exists or ends in /, which it goes into (default: here, "
        "under its own name)",
    )  # fmt: skip
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FILE",
        help="one file of it; may be repeated",
    )
    add_reference(parser)


def run(root: Path, options: Namespace) -> None:
    from ingot.driver.release import released  # no other command needs urllib3
    from ingot.registry import listed, restore, trusted
    from ingot.registry.connection import Connection

    place, keys = reference.parse(options.reference), trusted.keys(options.key)
    folder = _folder(options.target)
    found = listed.read(Connection(place, "pull", options.plain_http))
    released.stop_on_release(found, options.only)
    if keys:
        trusted.check(found, keys)
    target = Path(options.target) if folder is None else folder / found.title()
    _free(target)
    files = restore.pull(found, target, options.only)
    size = sum(file.size for file in files)
    signature = "signed by a trusted key" if keys else _unchecked(found)
    print(f"{target}: {len(files)} files, {size / 1e6:.1f} MB, every digest right; {signature}")


def _unchecked(found: Any) -> str:
    """What is said of a signature without a key to check it by.  One that does not come stops nobody."""
    from ingot.registry import trusted

    try:
        if not trusted.has_signature(found):
            return "not signed"
    except Refused:
        return "no signature was looked at"
    return f"signed, not checked: name the public key by --key or {trusted.KEYS}"


def _folder(named: str | None) -> Path | None:
    """Which folder it goes into, as cp has it; None where it is renamed.  Refused: what is taken."""
    path = Path(named or ".")
    if path.is_dir():
        return path
    if named and str(named).endswith("/"):
        if os.path.lexists(path):
            raise Refused(f"{path}: a file, expected a folder, or nothing there; name another")
        return path
    _free(path)
    return None


def _free(target: Path) -> None:
    if os.path.lexists(target):
        raise Refused(f"{target}: exists, expected nothing there; name another, or move it away")
