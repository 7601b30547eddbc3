"""Why a job is built: the fields in which its key differs from the nearest record's."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingot.driver.cache import key
from ingot.driver.catalogue.job import Job
from ingot.model.checkpoint import identity
from ingot.store.records import Record, Store

MANY = 400  # records of one rule that are compared, the youngest first


@dataclass(frozen=True)
class Nearest:
    """The record of the same rule with the fewest differences, if there is any."""

    record: Record | None
    differences: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.record is None:
            return "new"
        title = self.record.outputs[0]["title"]
        if not self.differences:
            return f"{title} was built before, but its bytes have left the store"
        more = f", and {len(self.differences) - 1} more" if len(self.differences) > 1 else ""
        return f"{self.differences[0]}{more} (nearest record: {title})"


def nearest(store: Store, job: Job, fields: dict, any_model: bool = False) -> Nearest:
    """The record of the job's own outputs to explain it by: another model's says nothing of this one.

    `any_model`: of files that are called the same in each checkpoint, whosever they are.
    """
    names = {path.rpartition("/")[2] for path in job.writes}
    stand = {f"sha256:{os.path.basename(os.path.realpath(path))}" for path in job.writes}
    best, rank = Nearest(None, ()), 1 << 30
    ours = {"fields": fields, "about": key.about(job)}
    for record in store.youngest(job.rule, MANY):
        first = record.outputs[0]  # what stands there may have been built under another name
        if first["title"] not in names and first["digest"] not in stand:
            continue
        config = store.config(record)
        try:
            found = tuple(differences(config, ours))
        except (KeyError, TypeError, AttributeError, ValueError):  # fields of another form
            continue
        if len(found) < rank and (any_model or _of_one_model(job, config["fields"], fields)):
            best, rank = Nearest(record, found), len(found)
    return best


def _of_one_model(job: Job, old: dict, new: dict) -> bool:
    """Of the files that are called the same in each checkpoint, their list alone says whose it is."""
    if all(path.count("/") <= 1 for path in job.writes):
        return True
    hubs = [side["params"].get("hub") for side in (old, new)]
    return hubs[0] is not None and hubs[0] == hubs[1]


def differences(old: dict, new: dict) -> Iterator[str]:
    """One line per field that differs.  Both hold `fields` and `about`."""
    then, now = old["fields"], new["fields"]
    if then["version"] != now["version"]:
        yield f"the key's format: version {then['version']} → {now['version']}"
    if then["command"] != now["command"]:
        yield f"rule {now['rule']}: its shell text changed"
    if then["outputs"] != now["outputs"]:
        yield f"rule {now['rule']}: its outputs, or their order, changed"
    for kind, word in (("params", ""), ("wildcards", "wildcard ")):
        for name in _either(then[kind], now[kind]):
            a, b = then[kind].get(name), now[kind].get(name)
            if a != b or type(a) is not type(b):
                yield f"{word}{name}: {_change(a, b)}"
    for path in _either(then["code"], now["code"]):
        if then["code"].get(path) != now["code"].get(path):
            yield f"scripts/{path} {_fate(path, then['code'], now['code'])}"
    yield from _locks(old, new)
    for role in _either(then["inputs"], now["inputs"]):
        a, b = then["inputs"].get(role), now["inputs"].get(role)
        if a == b:
            continue
        word = f"input {role}" if role else "an unnamed input"
        trees = [side.get("about", {}).get("trees", {}).get(role) for side in (old, new)]
        if all(trees):
            a, b = trees
        yield from (f"{word}: {line}" for line in _contents(a, b))


def _either(a: dict, b: dict) -> list[str]:
    return sorted({*a, *b})


def _fate(name: str, then: dict, now: dict) -> str:
    return "is new" if name not in then else "is gone" if name not in now else "changed"


def _change(a: Any, b: Any) -> str:
    if isinstance(a, list) and isinstance(b, list):
        gone, come = [x for x in a if x not in b], [x for x in b if x not in a]
        if gone or come:
            return f"{_words(gone)} → {_words(come)}"
        return f"the same in another order: {_words(b)}"
    if type(a) is not type(b):
        return f"{a!r} ({type(a).__name__}) → {b!r} ({type(b).__name__})"
    return f"{a!r} → {b!r}"


def _words(items: list) -> str:
    return " ".join(map(str, items)) or "nothing"


def _locks(old: dict, new: dict) -> Iterator[str]:
    then, now = old["fields"]["lock"], new["fields"]["lock"]
    pins, fresh = (side.get("about", {}).get("pins", {}) for side in (old, new))
    for path in _either(then, now):
        if then.get(path) == now.get(path):
            continue
        folder, _, file = path.partition("/")
        moved = [f"{n} {pins.get(n, 'absent')} → {fresh.get(n, 'absent')}"
                 for n in _either(pins, fresh) if pins.get(n) != fresh.get(n)]  # fmt: skip
        if file == "requirements.lock" and moved:
            more = f", and {len(moved) - 1} more" if len(moved) > 1 else ""
            yield f"envs/{folder} lock: {moved[0]}{more}"
        else:
            yield f"envs/{path} {_fate(path, then, now)}"


def _contents(a: Any, b: Any) -> Iterator[str]:
    if a and b and isinstance(a, list) != isinstance(b, list):
        was, now = (f"{len(x)} files" if isinstance(x, list) else "one file" for x in (a, b))
        yield f"was {was}, is {now}"
        return
    if not isinstance(a, list) or not isinstance(b, list):
        yield _content("its content", a, b) if a and b else ("is new" if b else "is gone")
        return
    then, now = dict(a), dict(b)
    moved = [(name, content) for name, content in a if name not in now]
    for name in _either(then, now):
        if name in then and name in now:
            if then[name] != now[name]:
                yield _content(name, then[name], now[name])
        elif name in now:
            before = [old for old, content in moved if content == now[name]]
            yield f"{before[0]} is now called {name}" if before else f"{name} is new"
        elif then[name] not in now.values():
            yield f"{name} is gone"
    if then == now:
        yield "the same files in another order"


def _content(what: str, a: Any, b: Any) -> str:
    """Two contents of one input; of shards, which tensors differ."""
    if isinstance(a, dict) or isinstance(b, dict):  # entries of a folder
        if a.get("digest") == b.get("digest") and a.get("executable") != b.get("executable"):
            return f"{what} is {'now' if b.get('executable') else 'no longer'} executable"
        if "link" in a and "link" in b:
            return f"{what} points to {b['link']}, not to {a['link']}"
        return f"{what} has another content"
    if a.startswith("tensors:") and b.startswith("tensors:"):
        then, now = identity.document(a), identity.document(b)
        if then and now:
            names = _either(then["tensors"], now["tensors"])
            odd = [n for n in names if then["tensors"].get(n) != now["tensors"].get(n)]
            if odd:
                return f"{what}: {len(odd)} of {len(names)} tensors differ, first {odd[0]}"
            return f"{what}: the header changed, no tensor"
    return f"{what} changed"
