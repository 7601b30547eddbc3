"""A run that has nothing to do, known before Snakemake is imported: that takes 1.5 of its 1.8 seconds.

A run notes whatever it looks at, as it was at first: each file that it opens, asks the state of or lists.
Where nothing was to be done, that is kept.  The same command at the same place, with nothing changed of
all that, would decide the same, and says the same.  In any other case, and any doubt, Snakemake decides.

What is kept lies in the user's own cache folder: who can write to a working folder cannot forge it.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import time
import zlib
from pathlib import Path
from typing import Any

FORM = 1
DAY = 86400  # seconds that it holds: so often a run tells the store that its records are of use
MOST = 100  # that are kept
LARGEST = 64 << 20  # bytes of one
TICK = 20_000_000  # ns, in which a kernel's clock of files moves: see base/memo.py
CORES = re.compile(r"(-c|-j|--cores=|--jobs=)(\d+|all)")
ALONE = ("--", "-k", "--keep-going", "-q", "--quiet", "-c", "-j", "--cores", "--jobs")
WITH_VALUE = ("-c", "-j", "--cores", "--jobs", "-s", "--snakefile", "--configfile", "--config")
TARGET = re.compile(r"artifacts/[\w./+-]+|[A-Za-z_]\w*=[\w./:+-]*|[\w./+-]+")
PASSING = ("_", "SHLVL", "OLDPWD", "INGOT_RUN", "COLUMNS", "LINES", "WINDOWID")  # variables
# of no content that stands; and bytecode: the source that it was made of is looked at
PASSED_OVER = re.compile(r"/(proc|sys|dev)/|.*/__pycache__(/|$)|.*\.pyc|.*/ingot/bytecode(/|$)")
# what a decision cannot rest on: there is no telling whether it would be the same again
UNSOUND = re.compile(
    r"subprocess\.Popen|os\.(chdir|exec|fork|posix_spawn|system)|socket\.(connect|getaddrinfo)|sqlite3\.connect"
)
HARMLESS = ("uname", ["uname", "-p"])  # Snakemake's platform.uname()
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

State = list | str | None  # of a file: its numbers; an error's; not there


def known(words: list[str]) -> bool:
    """Does nothing have to be done, by what an earlier run kept?  Then it is said, as that run said it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zlib.error):
        place = _place(words) if _plain(words) else None
        if place is None or not (kept := _read(place)):
            return False
        if not 0 <= time.time() - kept["made"] < DAY:
            return False
        if all(_state(path) == state for path, state in kept["files"].items()) and all(
            _names(path) == names for path, names in kept["folders"].items()
        ):
            sys.stderr.write(kept["said"])
            return True
    return False


class Watch:
    """What this process looks at from now on, and says."""

    def __init__(self, words: list[str]):
        self.place, self.here, self.begun = None, "", time.time_ns()
        with contextlib.suppress(OSError):  # of a folder that is gone, Snakemake says so
            self.here, self.place = os.getcwd(), _place(words) if _plain(words) else None
        self.on = self.sound = self.place is not None
        self.files: dict[str, State] = {}
        self.folders: dict[str, str | None] = {}
        self.written: set[str] = set()
        self.made: tuple[str, ...] = ("\0",)  # folders; "\0" is before no name
        self.said: list[str] = []
        if self.on:
            sys.addaudithook(self._audit)
            os.stat, os.lstat = self._noting(os.stat), self._noting(os.lstat)
            os.access, os.readlink = self._noting(os.access), self._noting(os.readlink)
            sys.stderr, sys.stdout = (
                Said(sys.stderr, self.said.append),
                Said(sys.stdout, self._doubt),
            )

    def keep(self) -> None:
        """Of a run that had nothing to do: for the next."""
        self.on, place = False, self.place
        if not self.sound or place is None:
            return
        for module in list(sys.modules.values()):
            if path := getattr(module, "__file__", None):
                self.note(path)
        for path in self.written:
            self.files.pop(path, None)
        if any(map(self._moves, self.files.values())) or self._in_memory():
            return
        kept = {"form": FORM, "made": time.time(), "said": "".join(self.said)}
        text = json.dumps({**kept, "files": self.files, "folders": self.folders})
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = place.with_suffix(f".{os.getpid()}")
            partial.touch(0o600)
            partial.write_bytes(zlib.compress(text.encode(errors="surrogateescape"), 1))
            partial.replace(place)
            old = sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in old[:-MOST]:
                path.unlink(missing_ok=True)

    def note(self, path: Any, below: int | None = None) -> None:
        """The state of a file, before it is known what of it is asked; `below` is an open folder."""
        if not isinstance(path, int):  # which was opened
            name = self._name(path, below)
            if (
                name not in self.files
                and not name.startswith(self.made)
                and not PASSED_OVER.match(name)
            ):
                self.files[name] = _state(name)

    def _name(self, path: Any, below: int | None = None) -> str:
        start = self.here if below is None else os.path.realpath(f"/proc/self/fd/{below}")
        return os.path.join(start, os.fsdecode(path))

    def _noting(self, function: Any) -> Any:
        def noting(path, *more, **options):
            if self.on:
                self.note(path, options.get("dir_fd"))
            return function(path, *more, **options)

        return noting

    def _audit(self, event: str, words: tuple) -> None:
        if not self.on:
            return
        if event == "open":
            path, _, flags = words
            if isinstance(path, (str, bytes)):
                if flags & WRITES:
                    self.written.add(self._name(path))
                else:
                    self.note(path)
        elif event == "os.mkdir":
            self.note(words[0])
            if self.files.get(name := self._name(words[0]), "") is None:
                self.made += (f"{name}/",)
        elif event in ("os.listdir", "os.scandir"):
            self._note_folder(words[0], event == "os.scandir")
        elif UNSOUND.match(event) and words[:2] != HARMLESS:
            self._doubt(event)

    def _note_folder(self, path: Any, with_states: bool) -> None:
        """Its names; and what each of them is, where that comes with them."""
        name = self._name("", path) if isinstance(path, int) else self._name(path or ".")
        if f"{name.rstrip('/')}/".startswith(self.made) or PASSED_OVER.match(name):
            return
        if name not in self.folders:
            self.folders[name] = None  # to list it here is no news
            self.folders[name] = _names(name)
            if with_states:
                with contextlib.suppress(OSError):
                    for one in os.listdir(name):
                        self.note(os.path.join(name, one))

    def _doubt(self, _why: str) -> None:
        self.sound = False

    def _moves(self, state: State) -> bool:
        """Was it written to as we looked?  Then its times may not tell the next write from that one."""
        return isinstance(state, list) and max(state[-2:]) > self.begun - TICK

    def _in_memory(self) -> bool:
        """Is one of them where a write through a mapping changes no time?"""
        from ingot.base import memo

        own = (sys.prefix, sys.base_prefix)  # code, which nobody maps to write
        places = {
            state[0]: path
            for path, state in self.files.items()
            if isinstance(state, list) and not path.startswith(own)
        }
        return any(memo.file_system(path, dev).startswith("memory") for dev, path in places.items())


class Said:
    """A stream that also tells somebody what is written to it."""

    def __init__(self, stream: Any, told: Any):
        self._stream, self._told = stream, told

    def write(self, text: str) -> int:
        self._told(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _plain(words: list[str]) -> bool:
    """Targets, and options that change nothing where nothing has to be done."""
    before = ""
    for word in words:
        if before in WITH_VALUE and TARGET.fullmatch(word):
            pass
        elif word.startswith("-"):
            if word not in (*ALONE, *WITH_VALUE) and not CORES.fullmatch(word):
                return False
        elif not TARGET.fullmatch(word):
            return False
        before = word
    return True


def _place(words: list[str]) -> Path | None:
    """Where it is kept for this command, here, by this user, with these variables; None without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        return None
    here = os.getcwd()
    own = os.stat(here)
    variables = sorted(pair for pair in os.environ.items() if pair[0] not in PASSING)
    said = [
        FORM, words, here, own.st_dev, own.st_ino, variables, os.getuid(), os.getgid(), os.getgroups(),
        sorted(os.sched_getaffinity(0)), sys.executable, sys.version, sys.path, list(os.uname()),
        [os.isatty(number) for number in (1, 2)],
    ]  # fmt: skip
    return Path(cache, "ingot/noop", hashlib.sha256(json.dumps(said).encode()).hexdigest())


def _read(place: Path) -> dict[str, Any] | None:
    """What was kept; None where it is not this user's own, or is another form's."""
    for path in (place.parent, place):
        found = os.lstat(path)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022 or stat.S_ISLNK(found.st_mode):
            return None
    if found.st_size > LARGEST:
        return None
    kept = json.loads(zlib.decompress(place.read_bytes()).decode(errors="surrogateescape"))
    return kept if kept.get("form") == FORM else None


def _state(path: str) -> State:
    """What tells this state of a file from any other; of a folder, that it is this one."""
    try:
        found = STAT(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"error {error.errno}"
    own = [found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid]
    if stat.S_ISREG(found.st_mode):
        return [*own, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    return f"{own}"


def _names(path: str) -> str | None:
    try:
        said = "\0".join(sorted(os.listdir(path)))
    except OSError:
        return None
    return hashlib.sha256(os.fsencode(said)).hexdigest()


STAT = os.stat  # the kernel's, whoever notes what is asked of it
