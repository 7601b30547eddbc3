"""A run that has nothing to do, known before Snakemake is imported: that takes 1.5 of its 1.8 seconds.

A run notes whatever it looks at, as it was at first: each file that it opens, asks the state of or lists.
Where nothing was to be done, and all is still so, that is kept.  The same command at the same place, with
nothing changed of all that, would decide the same, and says the same.  In any other case, and any doubt,
Snakemake decides.

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
HOLDS = 6 * 3600  # seconds: once a day a run has to tell the store that its records are of use
MOST, LARGEST = 100, 64 << 20  # that are kept; bytes of one
NAME = re.compile(r"[0-9a-f]{64}(\.\d+)?")
LONGEST = 10_000  # characters that such a run says
# ns, in which a kernel's clock of files moves; some file systems count seconds
TICK, SECOND = 20_000_000, 10**9
CORES = re.compile(r"(-c|-j|--cores=|--jobs=)(\d+|all)")
ALONE = ("--", "-k", "--keep-going", "-q", "--quiet", "-c", "-j", "--cores", "--jobs")
WITH_VALUE = ("-c", "-j", "--cores", "--jobs", "-s", "--snakefile", "--configfile", "--config")
TARGET = re.compile(r"artifacts/[\w./+-]+|[A-Za-z_]\w*=[\w./:+-]*|[\w./+-]+")
PASSING = ("_", "SHLVL", "OLDPWD", "INGOT_RUN", "COLUMNS", "LINES", "WINDOWID")  # variables
BYTECODE = "PYTHONPYCACHEPREFIX"
# of no content that stands; and bytecode, but in artifacts: the source that it was made of is looked at
PASSED_OVER = re.compile(r"/(proc|sys)/.*|(?!.*/artifacts/)(.*\.pyc|.*/__pycache__)")
# what a decision cannot rest on: there is no telling whether it would be the same again
UNSOUND = re.compile(
    r"subprocess\.Popen|os\.(chdir|exec|fork|posix_spawn|system)|socket\.(connect|getaddrinfo)|sqlite3\.connect"
)
HARMLESS = ("uname", ["uname", "-p"])  # Snakemake's platform.uname()
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# the kernel's, whoever notes what is asked of them
STAT, LSTAT, READLINK = os.stat, os.lstat, os.readlink

State = list | str | None  # of a file or link: its numbers; an error, or what is no file; not there


def known(words: list[str]) -> bool:
    """Does nothing have to be done, by what an earlier run kept?  Then it is said, as that run said it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
        place = _place(words) if _plain(words) else None
        if place is None or not (kept := _read(place)):
            return False
        if 0 <= time.time() - kept["made"] < HOLDS and _stands(kept["files"], kept["folders"]):
            sys.stderr.write(kept["said"])
            return True
    return False


class Watch:
    """What this process looks at from now on, and says."""

    def __init__(self, words: list[str]):
        self.place, self.here, self.begun = None, "", time.time_ns()
        with contextlib.suppress(OSError):  # of a folder that is gone, Snakemake says so
            self.here, self.place = os.getcwd(), _place(words) if _plain(words) else None
        self.on = self.place is not None  # until there is a doubt
        self.files: dict[str, State] = {}
        self.folders: dict[str, str | None] = {}
        self.written: set[str] = set()
        self.made: tuple[str, ...] = ("\0",)  # folders; "\0" is before no name
        self.said = ""
        if self.on:
            import shutil  # noqa: F401 (it looks which of os are the kernel's)

            sys.addaudithook(self._audit)
            os.stat, os.lstat = self._noting(os.stat), self._noting(os.lstat)
            os.access, os.readlink = self._noting(os.access), self._noting(os.readlink)
            sys.stderr, sys.stdout = Said(sys.stderr, self._say), Said(sys.stdout, self._doubt)

    def keep(self) -> None:
        """Of a run that had nothing to do: for the next."""
        if not self.on or (place := self.place) is None:
            return
        self.on = False
        for module in list(sys.modules.values()):
            if path := getattr(module, "__file__", None):
                self.note(path)
        for folder in sys.path_importer_cache:  # some were listed before this began
            self._note_folder(folder, False)
        for path in self.written:
            self.files.pop(path, None)
        found = {path: one for path, one in self.files.items() if f"{path}/" not in self.made}
        if any(map(self._moves, found.values())) or not _stands(found, self.folders):
            return
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._in_memory() or not _own(place.parent):
                return
            kept = {"form": FORM, "made": time.time(), "said": self.said}
            text = json.dumps({**kept, "files": self.files, "folders": self.folders})
            partial = place.with_suffix(f".{os.getpid()}")
            partial.touch(0o600)
            partial.write_bytes(zlib.compress(text.encode(errors="surrogateescape"), 1))
            partial.replace(place)
            ours = [path for path in place.parent.iterdir() if NAME.fullmatch(path.name)]
            for path in sorted(ours, key=lambda path: path.stat().st_mtime)[:-MOST]:
                path.unlink(missing_ok=True)

    def note(self, path: Any, below: int | None = None) -> None:
        """The state of a file, before it is known what of it is asked; `below` is an open folder."""
        if not isinstance(path, int):  # which was opened
            name = self._name(path, below)
            passed = name.startswith(self.made) or PASSED_OVER.fullmatch(name)
            if name not in self.files and not passed:
                self.files[name] = _state(name)

    def _name(self, path: Any, below: int | None = None) -> str:
        start = self.here if below is None else READLINK(f"/proc/self/fd/{below}")
        return os.path.join(start, os.fsdecode(path))

    def _noting(self, function: Any) -> Any:
        def noting(path, *more, **options):
            if not self.on:
                return function(path, *more, **options)
            self.note(path, options.get("dir_fd"))
            try:
                return function(path, *more, **options)
            finally:
                self._look_again(path, options.get("dir_fd"))

        return noting

    def _look_again(self, path: Any, below: int | None) -> None:
        """What changes as a run looks at it may change back: nothing is known by that run."""
        name = "" if isinstance(path, int) else self._name(path, below)
        ours = name in self.written or f"{name}/".startswith(self.made)
        if not ours and name in self.files and _state(name) != self.files[name]:
            self._doubt(name)

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
        compiled = os.environ.get(BYTECODE, "/proc")
        if PASSED_OVER.fullmatch(name) or f"{name.rstrip('/')}/".startswith(
            (*self.made, f"{compiled}/")
        ):
            return
        if name not in self.folders:
            self.folders[name] = None  # to list it here is no news
            self.folders[name] = _names(name)
            if with_states:
                with contextlib.suppress(OSError):
                    for one in os.listdir(name):
                        self.note(os.path.join(name, one))

    def _say(self, text: str) -> None:
        if self.on:
            self.said += text
            self.on = len(self.said) < LONGEST

    def _doubt(self, _why: str) -> None:
        self.on = False

    def _moves(self, state: State) -> bool:
        """Was it written to as we looked?  Then its times may not tell the next write from that one."""
        if not (numbers := _file(state)):
            return False
        changed = max(numbers[-2:])
        return changed > self.begun - (TICK if changed % SECOND else 2 * SECOND)

    def _in_memory(self) -> bool:
        """Is one of them where a write through a mapping changes no time?"""
        from ingot.base import memo

        code = (f"{sys.prefix}/", f"{sys.base_prefix}/")  # which nobody maps to write
        places = {STAT(self.here).st_dev: self.here}
        for path, state in self.files.items():
            if (numbers := _file(state)) and not path.startswith(code):
                places[numbers[0]] = path
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
    own = STAT(here)
    variables = sorted(pair for pair in os.environ.items() if pair[0] not in PASSING)
    said = [
        FORM, words, here, own.st_dev, own.st_ino, variables, os.getuid(), os.getgid(), os.getgroups(),
        sorted(os.sched_getaffinity(0)), sys.executable, sys.version, sys.path, list(os.uname()),
        [os.isatty(number) for number in (1, 2)],
    ]  # fmt: skip
    return Path(cache, "ingot/noop", hashlib.sha256(json.dumps(said).encode()).hexdigest())


def _own(path: Path) -> bool:
    """Can nobody but this user have written it?"""
    found = LSTAT(path)
    return (
        found.st_uid == os.geteuid()
        and not found.st_mode & 0o022
        and not stat.S_ISLNK(found.st_mode)
    )


def _read(place: Path) -> dict[str, Any] | None:
    """What was kept; None where it is not this user's own, or is another form's."""
    if not (_own(place.parent) and _own(place)) or place.stat().st_size > LARGEST:
        return None
    kept = json.loads(zlib.decompress(place.read_bytes()).decode(errors="surrogateescape"))
    return kept if kept.get("form") == FORM else None


def _stands(files: dict[str, State], folders: dict[str, str | None]) -> bool:
    """Is each file, and are the names in each folder, as they were?"""
    same = all(_state(path) == state for path, state in files.items())
    return same and all(_names(path) == names for path, names in folders.items())


def _state(path: str) -> State:
    """What tells this state of a file from any other; of a link what it says, too; of a folder, that it is
    this one."""
    try:
        found = LSTAT(path)
        if stat.S_ISLNK(found.st_mode):
            return ["link", READLINK(path), _state_behind(path)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"error {error.errno}"
    return _numbers(found)


def _state_behind(link: str) -> State:
    try:
        return _numbers(STAT(link))
    except OSError as error:
        return f"error {error.errno}"


def _numbers(found: os.stat_result) -> State:
    own = [found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid]
    if stat.S_ISREG(found.st_mode):
        return [*own, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    return f"{own}"


def _file(state: State) -> list | None:
    """The numbers of the regular file that it is of, or that a link leads to."""
    if isinstance(state, list) and state[0] == "link":
        state = state[2]
    return state if isinstance(state, list) else None


def _names(path: str) -> str | None:
    """But those that are passed over: where code lies, bytecode appears as others import it."""
    try:
        found = os.listdir(path)
    except OSError:
        return None
    ends = ("__pycache__", ".pyc")
    passed = {one for one in found if one.endswith(ends) and PASSED_OVER.fullmatch(f"{path}/{one}")}
    said = "\0".join(sorted({*found} - passed))
    return hashlib.sha256(os.fsencode(said)).hexdigest()
