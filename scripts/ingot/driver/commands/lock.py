"""Resolve a toolchain's requirements.in again, and write its lock: every package with its hash.

--try writes nothing: it says which packages would move, and which cells would then be built again.
"""

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.toolchains import toolchains


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a folder of envs/")
    parser.add_argument(
        "--try", dest="attempt", action="store_true", help="only say what it would change"
    )
    parser.add_argument(
        "target", nargs="*", help="--try: of these (default: what somebody serves, of each model)"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int | None:
    if not options.attempt:
        print(toolchains.lock(root, options.name))
        return None
    from ingot.driver.release import matrix, moved_lock

    catalogue = schema.load(root, options.configfile)
    pinned = [n for n, one in catalogue["models"].items() if "path" in one or one.get("revision")]
    wanted = list(options.target)
    for name in pinned if not wanted else ():
        with suppress(Refused):  # a model of which nothing can be verified
            wanted += matrix.cells(name, catalogue, {})
    with moved_lock.copied(root) as other:
        toolchains.lock(other, options.name)
        moved = moved_lock.moved(
            moved_lock.pins(root, options.name), moved_lock.pins(other, options.name)
        )
        changed = moved_lock.changed(root, other, wanted, options.configfile) if moved else []
    print("\n".join(moved) or f"envs/{options.name}: every package stays")
    print("\n".join(f"would be built again: {target}" for target in changed))
    print(f"{len(moved)} packages move, {len(changed)} of {len(wanted)} cells change")
    return bool(changed)
