"""A toolchain as layers: a virtual environment at /opt/ingot, each large package in a layer of its own.

What was tested is what is shipped: the files are those of the toolchain that is installed here.  What
differs between machines is left out, or written anew: paths of the installation, compiled bytecode.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from ingot.images.layers import Member
from ingot.refused import Refused

PLACE = "opt/ingot"
PACKAGES = f"{PLACE}/lib/python3.11/site-packages"
LARGE = 16 << 20  # bytes of a package that gets a layer of its own
MOST = 40  # layers: runtimes take 127 with those of the base
OF_ITS_INSTALLATION = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
OF_PIP = re.compile(r"(pip|setuptools|wheel|_distutils_hack)([-.].*)?$")
COMMANDS = ("ray", "serve", "vllm")  # also found by a login shell, whose PATH is its own


def grouped(toolchain: Path) -> list[list[Member]]:
    """The members of each layer, those that change least often first."""
    site = toolchain / "lib/python3.11/site-packages"
    if not site.is_dir():
        raise Refused(f"{site}: missing, expected a toolchain of Python 3.11; build it")
    owners = {name: owner for owner, names in distributions(site) for name in names}
    groups: dict[str, list[Member]] = {}
    sizes: dict[str, int] = {}
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site)
        if not path.is_file() or "__pycache__" in name.parts or OF_PIP.match(name.parts[0]):
            continue
        if name.name in OF_ITS_INSTALLATION and name.parts[0].endswith(".dist-info"):
            continue
        owner = owners.get(name.as_posix(), "")
        sizes[owner] = sizes.get(owner, 0) + path.stat().st_size
        executable = bool(path.stat().st_mode & 0o100)
        groups.setdefault(owner, []).append(Member(f"{PACKAGES}/{name}", path, executable))
    large = sorted(owner for owner in groups if owner and sizes[owner] >= LARGE)
    large = sorted(large, key=lambda owner: -sizes[owner])[:MOST]
    rest = [one for owner, members in groups.items() if owner not in large for one in members]
    return [*(groups[owner] for owner in sorted(large)), rest]


def distributions(site: Path) -> Iterator[tuple[str, list[str]]]:
    """Each package's name, and its files."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        with record.open(newline="") as file:
            yield record.parent.name.partition("-")[0], [row[0] for row in csv.reader(file) if row]


def environment(toolchain: Path, python: str) -> list[Member]:
    """What makes a virtual environment of them: `python` is the base's, such as usr/bin/python3.11."""
    home = f"/{python.rpartition('/')[0]}"
    found = [
        Member(f"{PLACE}/pyvenv.cfg", f"home = {home}\nversion = 3.11\n".encode()),
        *(
            Member(f"{PLACE}/bin/{name}", f"/{python}")
            for name in ("python", "python3", "python3.11")
        ),
    ]
    for path in sorted((toolchain / "bin").iterdir()):
        head = path.read_bytes()[:2] if path.is_file() and not path.is_symlink() else b""
        if head != b"#!" or OF_PIP.match(path.name.rstrip("0123456789.")):
            continue
        lines = path.read_bytes().split(b"\n")
        if b"python" in lines[0] or lines[0].startswith(b"#!/bin/sh"):
            found.append(Member(f"{PLACE}/bin/{path.name}", script(lines), executable=True))
            if path.name in COMMANDS:
                found.append(Member(f"usr/local/bin/{path.name}", f"/{PLACE}/bin/{path.name}"))
    return found


def script(lines: list[bytes]) -> bytes:
    """A command with the image's interpreter.  uv begins those of a long path by a shell's trick."""
    if lines[0].startswith(b"#!/bin/sh") and lines[1].startswith(b"'''exec'"):
        lines = lines[3:]
    else:
        lines = lines[1:]
    return b"\n".join([f"#!/{PLACE}/bin/python".encode(), *lines])
