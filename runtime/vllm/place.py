"""Where this process stands: which node of which job, in which folder, and what the site says."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent  # the bundle
LOCAL = "local-"  # how the job of a server without SLURM begins; behind it its process id
SITE = "INGOT_SERVE_SITE"
KEYS = {  # of the site file: a pattern of each value, and what it is
    "python": (r"/.+", "the path of an interpreter that has requirements.lock installed"),
    "account": (r"\S+", "one word"),
    "partition": (r"\S+", "one word"),
    "qos": (r"\S+", "one word"),
    "constraint": (r"\S+", "one word"),
    "reservation": (r"\S+", "one word"),
    "gpu": (r"[\w.-]+", "the site's name for the GPU in GRES, such as h100"),
    "time": (r"[\d:-]+", "SLURM's word for a time, in place of serve.sbatch's"),
    "interface": (r"[\w.-]+", "the network between nodes, such as ib0"),
    "scratch": (r"/.+", "a node-local folder: sockets and temporary files"),
    "state": (r"/.+", "a folder that all nodes see: the key, addresses, logs"),
    "port": (
        r"[1-9]\d{1,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5]",
        "a number from 10 to 65535",
    ),
    "cpus": (r"\d+", "a number, of each node, in place of serve.sbatch's"),
    "mem": (r"\d+[MG]?", "SLURM's word for memory, such as 64G"),
    "meet_seconds": (r"\d+", "seconds until every node must be there"),
    "read_mb_s": (r"\d+", "MB/s from the disk that holds the model"),
}


class Refused(Exception):
    """What ends a job: one line."""


@dataclass(frozen=True)
class Site:
    """The site file: `key = value` lines that a user writes once."""

    path: Path
    said: dict[str, str] = field(default_factory=dict)

    def get(self, key: str, default: str = "") -> str:
        return self.said.get(key, default)

    def number(self, key: str, default: int) -> int:
        return int(self.said.get(key, default))


def site_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get(SITE) or Path(home, "ingot/serve.conf"))


def read_site() -> Site:
    path, said = site_path(), {}
    if not path.is_file():
        if os.environ.get(SITE):
            raise Refused(f"{path}: missing, expected the site file that {SITE} names; write it")
        return Site(path)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        key, _, value = (word.strip() for word in line.partition("#")[0].partition("="))
        if not key and not value:
            continue
        if key not in KEYS:
            known = ", ".join(KEYS)
            raise Refused(
                f"{path}:{number}: {line.strip()!r}, expected KEY = VALUE with one of {known}"
            )
        pattern, expected = KEYS[key]
        if not re.fullmatch(pattern, value):
            raise Refused(f"{path}:{number}: {line.strip()!r}, expected {expected}")
        said[key] = value
    return Site(path, said)


def read_bundle() -> dict:
    path = FOLDER / "bundle.json"
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refused(
            f"{path}: {error}, expected what the bundle was built with; copy it again"
        ) from None


@dataclass(frozen=True)
class Place:
    """A node of a job, or this machine without SLURM."""

    job: str
    rank: int
    names: tuple[str, ...]  # of the nodes, by rank

    @property
    def nodes(self) -> int:
        return len(self.names)

    @property
    def local(self) -> bool:
        """Without SLURM."""
        return self.job.startswith(LOCAL)

    @property
    def name(self) -> str:
        return self.names[self.rank]

    def over(self) -> bool:
        """Has the job run as long as it may?"""
        if self.local:
            return False
        try:
            said = asked("scontrol", "show", "job", self.job, seconds=2)
        except Refused:
            return False
        run, limit = (re.search(rf"{word}=([\d:-]+)", said) for word in ("RunTime", "TimeLimit"))
        return bool(run and limit) and clock(run[1]) >= clock(limit[1])

    @property
    def number(self) -> int:
        """What ports are made from."""
        return int(re.sub(r"\D", "", self.job) or 0)


def runs_here(job: str, node: str, bundle: str) -> bool:
    """Does a server of `bundle` without SLURM still run, as far as can be seen from this machine?"""
    if node != os.uname().nodename:
        return True
    try:
        line = Path("/proc", job.removeprefix(LOCAL), "cmdline").read_bytes()
        mine = Path(bundle, "parts/node.py")  # of no other program, which has its number now
        return any(Path(os.fsdecode(word)).resolve() == mine for word in line.split(b"\0"))
    except OSError:
        return False


def clock(said: str) -> int:
    """Seconds of SLURM's 1-02:03:04."""
    days, _, rest = said.rpartition("-")
    hours, minutes, seconds = map(int, rest.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def find() -> Place:
    said = os.environ.get
    job = said("SLURM_JOB_ID")
    if not job or "SLURM_STEP_ID" not in os.environ:
        return Place(f"{LOCAL}{os.getpid()}", 0, (os.uname().nodename,))
    names = asked("scontrol", "show", "hostnames", said("SLURM_STEP_NODELIST", "")).split()
    return Place(job, int(said("SLURM_NODEID", "0")), tuple(names))


def asked(*words: str, seconds: float = 60) -> str:
    """What a program of SLURM says."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{words[0]}: {error}, expected an answer of SLURM") from None
    if done.returncode:
        raise Refused(
            f"{words[0]}: {done.stderr.strip().splitlines()[-1:]}, expected an answer of SLURM"
        )
    return done.stdout


def state_folder(site: Site) -> Path:
    """Of all jobs: below it each has a folder of its own."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(site.get("state") or Path(home, "ingot-serve"))


BLOCK, BLOCKS, FIRST = 25, 800, 12_000  # below the range from which Linux gives ports to clients


def port_blocks(number: int) -> list[int]:
    """The first port of each range that a job may take, the likeliest first."""
    return [FIRST + (number + step * 37) % BLOCKS * BLOCK for step in range(20)]
