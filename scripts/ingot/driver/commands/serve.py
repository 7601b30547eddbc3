"""Serve an artifact on this machine, by its format's server, until Ctrl-C.

    ingot serve artifacts/M_tp1.cpu.shortfin                  shortfin, of Ingot's toolchain
    ingot serve artifacts/M.q4_k_m.gguf -- --port 9000        llama-server, which you install

Words behind -- are the server's own.
"""

import os
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from ingot.base.refused import Refused
from ingot.base.sealed import SUMS, sealed
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import row_of
from ingot.driver.catalogue.formats.table import Format
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.release import older
from ingot.driver.toolchains import toolchains
from ingot.store.records import Store

# whose server may run in a toolchain of ours, if it is the one that the bundle pins; $PYTHON wins
TOOLCHAINS = {".shortfin": ("iree",), ".rayserve": ("rayserve", "vllm")}
LOCK = "requirements.lock"
SERVERS = {  # command -> how it is installed
    "llama-server": "a release of github.com/ggml-org/llama.cpp, or `brew install llama.cpp`",
    "vllm": "`pip install vllm`",
    "mlx_lm.server": "`pip install mlx-lm`",
}
SUCH = "artifacts/M_tp1.cpu.shortfin"
PLACEHOLDERS = ("MODEL.", "BASE.", "  #")  # of a command that takes more files than this one


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, help=f"such as {SUCH}")
    parser.add_argument("words", nargs="*", metavar="-- OPTIONS", help="of the server")
    add_catalogue(parser)
    parser.set_defaults(unknown="; the server's own stand behind --")


def run(root: Path, options: Namespace) -> None:
    path = options.artifact
    row, catalogue = row_of(str(path)), schema.load(root, options.configfile)
    if not row:
        raise Refused(f"{path}: not among the names of artifacts, expected such as {SUCH}")
    if not path.exists():
        stop_on_missing(path, catalogue, options.configfile)
    words = command(path, row)
    if (path / SUMS).is_file():
        sealed(path)
    older.told(root, Store(), catalogue, [str(path)])
    environment = dict(os.environ)
    for name in TOOLCHAINS.get(path.suffix, ()) if "PYTHON" not in environment else ():
        if (path / LOCK).is_file() and (root / "envs" / name / LOCK).read_bytes() == (
            path / LOCK
        ).read_bytes():
            environment["PYTHON"] = str(toolchains.build(root, name) / "bin/python")
    words += options.words
    print(f"starting {shlex.join(words)}", file=sys.stderr, flush=True)
    os.execvpe(words[0], words, environment)


def stop_on_missing(path: Path, catalogue: dict[str, Any], own: str | None) -> NoReturn:
    """Refuse what does not stand there: it has to be built, or cannot be.  `own` as --configfile."""
    target = f"{targets.FOLDER}{path.name}"
    targets.check(target, catalogue)
    more = f" --configfile {shlex.quote(own)}" if own else ""
    raise Refused(f"{path}: not built yet; `snakemake {target}{more}` builds it")


def command(path: Path, row: Format) -> list[str]:
    """How its server is started.  Refused: what no server loads by itself, and what is not on PATH."""
    said = row.serve.format(title=shlex.quote(str(path)))
    if (path / "serve").is_file():
        return [str((path / "serve").absolute())]
    if not said:
        raise Refused(
            f"{path}: {row.what}, which no server loads; `ingot targets MODEL` lists the bundles"
        )
    if any(one in row.serve for one in PLACEHOLDERS):
        raise Refused(f"{path}: served with other files only: {' '.join(said.split())}")
    first, *rest = shlex.split(said)
    if first == "kubectl" or first.startswith(str(path)):
        raise Refused(f"{path}: for a cluster, expected a form for one machine; there: {said}")
    if not (program := shutil.which(first)):
        way = SERVERS.get(first, "the makers of that format say how")
        raise Refused(f"{first}: not on PATH, expected it for {path}; install it: {way}")
    words = [found for word in rest for found in _files(word)]
    if len(words) < len(rest):
        raise Refused(f"{path}: none of its files is there, expected all; build it again")
    return [program, *words]


def _files(word: str) -> list[str]:
    """A pattern as the files that it stands for; another word as it is."""
    path = Path(word)
    return sorted(map(str, path.parent.glob(path.name))) if "*" in word else [word]
