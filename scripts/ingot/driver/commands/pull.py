"""Get a published artifact: `ingot pull oci://host/repository:tag [FOLDER]`.

Every byte is checked against its digest, every name stays in the folder, and nothing has its name before
all of it has come.  With --key, or INGOT_TRUSTED_KEYS, only what that key signed.
"""

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
    parser.add_argument("target", nargs="?", type=Path, help="by default the artifact's own name")
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
    _free(options.target)
    found = listed.read(Connection(place, "pull", options.plain_http))
    released.stop_on_release(found, options.only)
    if keys:
        trusted.check(found, keys)
    target = options.target or Path(found.title())
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


def _free(target: Path | None) -> None:
    if target and (target.exists() or target.is_symlink()):
        raise Refused(f"{target}: exists, expected nothing there; name another, or move it away")
