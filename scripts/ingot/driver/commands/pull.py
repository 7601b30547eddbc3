"""Get a published artifact: `ingot pull oci://host/repository:tag [FOLDER]`.

Every byte is held against its digest, every name stays in the folder, and nothing has its name before
all of it has come.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.refused import Refused
from ingot.registry import reference


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
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )


def run(root: Path, options: Namespace) -> None:
    from ingot.publishing import restore
    from ingot.registry.connection import Connection  # no other command needs urllib3

    place = reference.parse(options.reference)
    connection = Connection(place, "pull", options.plain_http)
    target = options.target or Path(restore.title_of(connection))
    if target.exists() or target.is_symlink():
        raise Refused(f"{target}: exists, expected nothing there; name another, or move it away")
    files = restore.pull(connection, target, options.only)
    size = sum(file.size for file in files)
    print(f"{target}: {len(files)} files, {size / 1e6:.1f} MB, every digest right")
