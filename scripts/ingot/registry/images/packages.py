"""A toolchain as layers: a virtual environment at /opt/ingot, each large package in a layer of its own.

What was tested is what is shipped: the files are those of the toolchain that is installed here.  What
differs between machines is left out, or written again: paths of the installation, compiled bytecode.
"""

import csv
import io
import os
import re
from pathlib import Path

from ingot.base.refused import Refused
from ingot.registry.images.layers import Member

PLACE = "opt/ingot"
SITE = "lib/python3.11/site-packages"
LARGE = 16 << 20  # bytes of a package that gets a layer of its own
MOST = 40  # layers: runtimes take 127 with those of the base
OF_ITS_INSTALLATION = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
OF_PIP = re.compile(r"pip([-.].*)?$")
OF_THE_SHELL = re.compile(r"(activate|Activate|python|pip)[\w.]*$")  # of bin/
COMMANDS = ("ray", "serve", "vllm")  # also found by a login shell, whose PATH is its own
BY_A_SHELL = b"'''exec'"  # how uv begins a script's second line where the path is long


def grouped(toolchain: Path) -> list[list[Member]]:
    """The members of each layer but the environment's, the large packages' first."""
    site = toolchain / SITE
    if not site.is_dir():
        raise Refused(f"{site}: missing, expected a toolchain of Python 3.11; build it")
    owners, groups, sizes = _owners(site), {}, {}
    for path in sorted({*site.rglob("*"), *_beside(site, owners)}):
        name = path.relative_to(toolchain)
        own = path.relative_to(site) if path.is_relative_to(site) else None
        if not path.is_file() or "__pycache__" in name.parts or _dropped(own):
            continue
        owner = owners.get(os.path.relpath(path, site), "")
        sizes[owner] = sizes.get(owner, 0) + path.stat().st_size
        source = record(path) if own and path.name == "RECORD" and _about(own) else path
        executable = bool(path.stat().st_mode & 0o100)
        groups.setdefault(owner, []).append(Member(f"{PLACE}/{name}", source, executable))
    large = sorted(owner for owner in groups if owner and sizes[owner] >= LARGE)
    large = sorted(sorted(large, key=lambda owner: -sizes[owner])[:MOST])
    rest = [one for owner, members in groups.items() if owner not in large for one in members]
    return [*(groups[owner] for owner in large), rest]


def _owners(site: Path) -> dict[str, str]:
    """The package of each file, by its path from site-packages."""
    found = {}
    for path in sorted(site.glob("*.dist-info/RECORD")):
        owner = path.parent.name.partition("-")[0]
        found[f"{path.parent.name}/RECORD"] = owner
        with path.open(newline="") as file:
            found |= {row[0]: owner for row in csv.reader(file) if row}
    return found


def _beside(site: Path, owners: dict[str, str]) -> list[Path]:
    """What packages have outside site-packages: libraries, data; commands are the environment's."""
    root = site.parents[2]
    paths = [Path(os.path.normpath(site / name)) for name in owners if name.startswith("../")]
    return [path for path in paths if path.is_relative_to(root) and path.parent != root / "bin"]


def _about(name: Path) -> bool:
    return name.parts[0].endswith(".dist-info")


def _dropped(name: Path | None) -> bool:
    if name is None:
        return False
    installed = _about(name) and len(name.parts) == 2 and name.name in OF_ITS_INSTALLATION
    return installed or bool(OF_PIP.match(name.parts[0]))


def record(path: Path) -> bytes:
    """A package's list of the files that are shipped; of scripts, which are written again, no digests."""
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in sorted(rows):
        about = _about(Path(row[0])) and row[0].rpartition("/")[2] in OF_ITS_INSTALLATION
        if not about and "__pycache__" not in row[0]:
            writer.writerow([row[0], "", ""] if row[0].startswith("../") else row)
    return out.getvalue().encode()


def environment(toolchain: Path, python: str) -> list[Member]:
    """What makes a virtual environment of them: `python` is the base's, such as usr/bin/python3.11."""
    home = f"/{python.rpartition('/')[0]}"
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = 3.11\n"
    found = [
        Member(f"{PLACE}/pyvenv.cfg", config.encode()),
        *(
            Member(f"{PLACE}/bin/{name}", f"/{python}")
            for name in ("python", "python3", "python3.11")
        ),
    ]
    for path in sorted((toolchain / "bin").iterdir()):
        if path.is_symlink() or not path.is_file() or OF_THE_SHELL.match(path.name):
            continue
        found.append(Member(f"{PLACE}/bin/{path.name}", script(path), executable=True))
        if path.name in COMMANDS:
            found.append(Member(f"usr/local/bin/{path.name}", f"/{PLACE}/bin/{path.name}"))
    return found


def script(path: Path) -> Path | bytes:
    """A command with the image's interpreter; what is no script of Python's, as it is."""
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return path
    lines = path.read_bytes().split(b"\n")
    if len(lines) > 2 and lines[1].startswith(BY_A_SHELL):
        lines = lines[3:]
    elif b"python" in lines[0].rpartition(b"/")[2]:
        lines = lines[1:]
    else:
        return path
    return b"\n".join([f"#!/{PLACE}/bin/python".encode(), *lines])
