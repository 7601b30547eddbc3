"""The key of an action: everything that affects what a job writes, and nothing else.

The command with its parameters and wildcards, file paths replaced by their roles; our own code, file
by file; the toolchain's lock; and what each input holds.  No path of a machine, no time, no host, no
number of cores.  docs/store.md states it for strangers; VERSION changes whenever it does.
"""

import functools
import os
import re
import string
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.driver.catalogue.job import Job
from ingot.model.checkpoint import identity
from ingot.model.checkpoint.files import name_of

VERSION = 2
LOCK = "requirements.lock"
ROOT = Path(__file__).resolve().parents[4]
FREE = ("output", "log", "threads", "resources", "sys", "PYTHON")  # these affect no byte


def fields(job: Job, digest_of: Callable[[str], str]) -> dict[str, Any]:
    """What the key is made of.  `digest_of(path)` says what an input holds.

    A ValueError where the rule has no shell text, fills in what no key holds, or has a parameter of
    another kind than JSON's.
    """
    used, here = _used(job.rule, job.shell), os.getcwd()
    lines = textwrap.dedent(job.shell).strip().splitlines()
    key: dict[str, Any] = {
        "version": VERSION,
        "rule": job.rule,
        "command": "\n".join(line.rstrip() for line in lines),
        "params": {n: _plain(job, n, job.params[n]) for n in sorted(used.get("params", ()))},
        "wildcards": {n: job.wildcards[n] for n in sorted(used.get("wildcards", ()))},
        "outputs": [[output.role, output.directory] for output in job.outputs],
        "code": {},
        "lock": {},
        "inputs": {},
    }
    for one in job.inputs:
        role, paths = one.role, one.paths
        if all(path in one.ancient for path in paths):
            continue
        if role == "code":
            key["code"] = {_below("scripts", p, here): digest_of(p) for p in paths}
        elif role == "lock":
            key["lock"] = {_below("envs", p, here): digest_of(p) for p in paths}
        elif one.listed or role not in used.get("input", ()):  # their names may say what they are
            key["inputs"][role] = [[_name(job, p), digest_of(p)] for p in paths]
        else:
            key["inputs"][role] = digest_of(paths[0])
    return key


@functools.cache  # each job of a rule has the same files: a tenth of a dry run of many targets
def _below(folder: str, path: str, here: str) -> str:
    """A path of the working directory `here`, as one from a folder of Ingot's."""
    return os.path.relpath(os.path.join(here, path), ROOT / folder)


def _name(job: Job, path: str) -> str:
    """A file's name, of an artifact without the model's: ranks of two models that hold the same are one
    set."""
    name, model = name_of(Path(path)), job.wildcards.get("model")
    if model and os.path.dirname(path) == "artifacts" and name.startswith(f"{model}_tp"):
        return "{model}" + name[len(model) :]
    return name


@functools.cache
def _used(rule: str, shell: str | None) -> dict[str, set[str]]:
    """The names that the shell text fills in, by kind: {"params": {"dtype"}, ...}."""
    found: dict[str, set[str]] = {}
    if not shell:
        raise ValueError(f"rule {rule}: has no shell:, expected one; its action has no key")
    for _, text, _, _ in string.Formatter().parse(shell):
        if text is None:
            continue
        kind, name = (
            (*re.split(r"[.\[]", text), "")[:2] if "." in text else (text.split("[")[0], "")
        )
        if kind in ("input", "params", "wildcards") and name:
            found.setdefault(kind, set()).add(name)
        elif kind not in ("input", *FREE):
            raise ValueError(
                f"rule {rule}: its shell text fills in {{{text}}}, expected only inputs, named "
                "params and wildcards, output or log; nothing else is in the action's key"
            )
    return found


def _plain(job: Job, name: str, value: Any) -> Any:
    """A parameter as JSON keeps it, type and all; no other kind may affect what is built."""
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(job, name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(job, name, item) for key, item in value.items()}
    raise ValueError(
        f"rule {job.rule}: params.{name} is a {type(value).__name__}, expected text, a number or "
        "a list of them; its action has no key"
    )


def about(job: Job) -> dict[str, Any]:
    """What is needed later: versions in the lock, what folders hold, samples of the shards."""
    pins, trees = {}, {}
    for one in job.inputs:
        for path in one.paths:
            if one.role == "lock" and os.path.basename(path) == LOCK:
                pins |= versions(path)
            elif os.path.isdir(path):
                entries = digest.tree(Path(path))[1]
                trees[one.role] = [[entry.pop("path"), entry] for entry in entries]
    shards = [path for path in job.reads if path.endswith(".safetensors")]
    samples = {
        os.path.basename(path): identity.sample(path) for path in shards if os.path.isfile(path)
    }
    return {"pins": pins, "trees": trees, "samples": samples}


def versions(lock: str) -> dict[str, str]:
    """Package and version of each line of a lock."""
    words = (line.split("#")[0].split() for line in Path(lock).read_text().splitlines())
    return dict(found[0].split("==", 1) for found in words if found and "==" in found[0])
