"""The key of an action: everything that decides what a job writes, and nothing else.

The command with its parameters and wildcards, file paths replaced by their roles; our own code, file
by file; the toolchain's lock; and what each input holds.  No path of a machine, no time, no host, no
number of cores.  artifacts/README.md states it for strangers; VERSION changes whenever it does.
"""

import contextlib
import os
import re
import string
import textwrap
from pathlib import Path
from typing import Any

from ingot.checkpoint import identity as weights
from ingot.files import digest

VERSION = 1
LARGE = 64 << 20  # bytes; larger shards are not read just to find that nothing is known of them
ROOT = Path(__file__).resolve().parents[4]
FREE = ("output", "log", "threads", "resources", "sys", "PYTHON")  # these decide no byte


class Unknown(Exception):
    """An input's content is not known."""


class Later(Unknown):
    """It will be, when the job that makes it is done."""


class Sources:
    """The files that no job makes, each read at most once, and only if the memo cannot answer."""

    def __init__(self):
        self.seen: dict[str, tuple[str, str]] = {}  # path: stamp, digest
        self.unread: dict[str, str] = {}  # path: stamp when we decided not to read it

    def digest(self, path: str, maybe_known) -> str:
        """What the file or folder at `path` holds.

        Unknown for a large shard that has to be read, when `maybe_known(path)` says that no action
        on record can have read it: then the step will hash it as it reads it.
        """
        if path in self.seen:
            return self.seen[path][1]
        if not os.path.exists(path):
            raise Unknown(f"{path} is not there")
        now = digest.stamp_of(path) or ""
        shard = path.endswith(".safetensors")
        if (
            shard
            and not weights.known(path)
            and os.path.getsize(path) > LARGE
            and not maybe_known(path)
        ):
            self.unread[path] = now
            raise Unknown(f"{path} was not seen before")
        if path.endswith(".py") and not digest.known(path):
            _drop_bytecode(Path(path))
        found = _shard(Path(path)) if shard else digest.of(path)
        self.seen[path] = (now, found)
        return found

    def stand(self, path: str) -> bool:
        """Is the file as it was when we looked first?"""
        if path not in self.seen:
            return self.unread.get(path) in (None, digest.stamp_of(path))
        stamp, found = self.seen[path]
        if not stamp:  # a folder
            return digest.of(path) == found
        return digest.stamp_of(path) == stamp


def _drop_bytecode(path: Path) -> None:
    """Python takes its cached bytecode for a file of the same size and second; we do not."""
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        with contextlib.suppress(OSError):
            cached.unlink()


def _shard(path: Path) -> str:
    try:
        return weights.of(path)
    except SystemExit:  # not a safetensors file: the step will say so
        return digest.of(path)


def roles(job) -> list[tuple[str, list[str], bool]]:
    """The inputs of a job: role, paths, and whether the rule names them as a list.

    Those without a name come together, in their order, as the role "".
    """
    found, unnamed = [], []
    for name, value in job.input._allitems():
        if name is None:
            unnamed.append(value)
        else:
            listed = not isinstance(value, str)
            found.append((name, list(value) if listed else [value], listed))
    return [*found, ("", unnamed, True)] if unnamed else found


def _outputs(job) -> list[tuple[str, Any]]:
    """Role and path of each output, in order."""
    found = []
    for name, value in job.output._allitems():
        paths = [value] if isinstance(value, str) else list(value)
        found += [(name or "", path) for path in paths]
    return found


def fields(job, digest_of) -> dict[str, Any]:
    """What the key is made of.  `digest_of(path)` says what an input holds, or raises Unknown."""
    used = _used(job)
    text = textwrap.dedent(job.rule.shellcmd).strip()
    key: dict[str, Any] = {
        "version": VERSION,
        "rule": job.rule.name,
        "command": "\n".join(line.rstrip() for line in text.splitlines()),
        "params": {
            n: _plain(job, n, getattr(job.params, n)) for n in sorted(used.get("params", ()))
        },
        "wildcards": {n: str(getattr(job.wildcards, n)) for n in sorted(used.get("wildcards", ()))},
        "outputs": [[name, path.is_directory] for name, path in _outputs(job)],
        "code": {},
        "lock": {},
        "inputs": {},
    }
    for role, paths, listed in roles(job):
        if all(path.is_ancient for path in job.input if path in paths):
            continue
        if role == "code":
            key["code"] = {os.path.relpath(p, ROOT / "scripts"): digest_of(p) for p in paths}
        elif role == "lock":
            key["lock"] = {os.path.relpath(p, ROOT / "envs"): digest_of(p) for p in paths}
        elif listed or role not in used.get("input", ()):  # their names may say what they are
            key["inputs"][role] = [[os.path.basename(p), digest_of(p)] for p in paths]
        else:
            key["inputs"][role] = digest_of(paths[0])
    return key


def _used(job) -> dict[str, set[str]]:
    """The names that the shell text fills in, by kind: {"params": {"dtype"}, ...}."""
    rule, found = job.rule, {}
    if not rule.shellcmd:
        raise ValueError(f"rule {rule.name}: has no shell:, expected one; its action has no key")
    for _, field, _, _ in string.Formatter().parse(rule.shellcmd):
        if field is None:
            continue
        kind, name = (
            (*re.split(r"[.\[]", field), "")[:2] if "." in field else (field.split("[")[0], "")
        )
        if kind in ("input", "params", "wildcards") and name:
            found.setdefault(kind, set()).add(name)
        elif kind not in ("input", *FREE):
            raise ValueError(
                f"rule {rule.name}: its shell text fills in {{{field}}}, expected only inputs, named "
                "params and wildcards, output or log; nothing else is in the action's key"
            )
    return found


def _plain(job, name: str, value):
    """A parameter as JSON keeps it, type and all; no other kind may decide what is built."""
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(job, name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(job, name, item) for key, item in value.items()}
    raise ValueError(
        f"rule {job.rule.name}: params.{name} is a {type(value).__name__}, expected text, a number or "
        "a list of them; its action has no key"
    )


def about(job) -> dict[str, Any]:
    """What is needed later: versions in the lock, what folders hold, samples of the shards."""
    pins, trees = {}, {}
    for role, paths, _ in roles(job):
        for path in paths:
            if role == "lock":
                pins |= versions(path)
            elif os.path.isdir(path):
                trees[role] = [[entry.pop("path"), entry] for entry in digest.tree(Path(path))[1]]
    shards = [path for path in job.input if path.endswith(".safetensors")]
    samples = {
        os.path.basename(path): weights.sample(path) for path in shards if os.path.exists(path)
    }
    return {"pins": pins, "trees": trees, "samples": samples}


def versions(lock: str) -> dict[str, str]:
    """Package and version of each line of a lock."""
    lines = Path(lock).read_text().splitlines()
    return dict(line.split()[0].split("==", 1) for line in lines if "==" in line.split("#")[0])
