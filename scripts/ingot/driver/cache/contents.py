"""What each input of a run holds, as far as it is known, and so which actions are on record."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ingot.base import digest, memo
from ingot.base.refused import Refused
from ingot.driver.cache import key
from ingot.driver.catalogue.job import Graph, Job
from ingot.model.checkpoint import identity
from ingot.store.records import Record, Store

LARGE = 64 << 20  # bytes; larger shards are not read just to find that nothing is known of them


class UnknownInput(Exception):
    """An input's content is not known."""


class NotBuiltYet(UnknownInput):
    """It will be, when the job that makes it is done."""


class Sources:
    """The files that no job makes, each read at most once, and only if the memo cannot answer."""

    def __init__(self):
        self.seen: dict[str, tuple[str, str]] = {}  # path: stamp, digest
        self.unread: dict[str, str] = {}  # path: stamp when we decided not to read it

    def digest(self, path: str, maybe_known: Callable[[str], bool]) -> str:
        """What the file or folder at `path` holds.

        UnknownInput for a large shard that has to be read, when `maybe_known(path)` says that no
        action on record can have read it: then the step will hash it as it reads it.
        """
        if path in self.seen:
            return self.seen[path][1]
        if not os.path.exists(path):
            raise UnknownInput(f"{path} is missing")
        now = memo.stamp_of(path) or ""
        shard = path.endswith(".safetensors")
        if (
            shard
            and not identity.known(path)
            and os.path.getsize(path) > LARGE
            and not maybe_known(path)
        ):
            self.unread[path] = now
            raise UnknownInput(f"{path} was not seen before")
        if path.endswith(".py") and not memo.known(path):
            _drop_bytecode(Path(path))
        found = _shard(Path(path)) if shard else digest.of(path)
        self.seen[path] = (now, found)
        return found

    def unchanged(self, path: str) -> bool:
        """Is the file as it was when we looked first?"""
        if path not in self.seen:
            return self.unread.get(path) in (None, memo.stamp_of(path))
        stamp, found = self.seen[path]
        if not stamp:  # a folder
            return digest.of(path) == found
        return memo.stamp_of(path) == stamp


def _drop_bytecode(path: Path) -> None:
    """Python takes its cached bytecode for a file of the same size and second; we do not."""
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        with contextlib.suppress(OSError):
            cached.unlink()


def _shard(path: Path) -> str:
    try:
        return identity.of(path)
    except Refused:  # not a safetensors file: the step will say so
        return digest.of(path)


class Contents:
    """Keys and records of the jobs of one run, found when they are asked for."""

    def __init__(self, graph: Graph, store: Store, dry: bool = False, remote: Any = None):
        self.graph, self.store = graph, store
        self.remote = remote  # a remote.Remote, whose imports take 0.1 s; None where there is none
        self.writable = not dry and store.prepare()  # a dry run waits for no lock
        self.sources = Sources()
        self.finished: set[Job] = set()
        self.made: dict[str, str] = {}  # path: digest of what this run built
        self.keys: dict[Job, tuple[str, dict]] = {}  # with the fields
        self.records: dict[Job, Record | None] = {}  # once the key is known
        self.samples: dict[str, set[str]] = {}  # rule: samples of the shards that are on record
        self.recipes: dict[Job, str] = {}
        self.borrowed: dict[Job, Record] = {}  # by recipe, of whose inputs not all are known
        self.gone: set[Job] = set()  # whose files the shared cache did not give

    def key(self, job: Job) -> tuple[str, dict]:
        """The key of a job's action and its fields.  UnknownInput while an input is not known."""
        if job not in self.keys:
            found = key.fields(job, lambda path: self.of(job, path))
            self.keys[job] = (digest.of_json(found), found)
        return self.keys[job]

    def known_key(self, job: Job) -> str | None:
        """The key of a cached job, if it is known already."""
        try:
            return self.key(job)[0] if job.cached else None
        except (UnknownInput, OSError):
            return self.borrowed[job].key if job in self.borrowed else None

    def of(self, job: Job, path: str) -> str:
        """What input `path` of `job` holds, or will hold."""
        if path in self.made:
            return self.made[path]
        maker = self.graph.maker(job, path)
        if maker is not None and maker in self.graph.forced and maker not in self.finished:
            raise NotBuiltYet(f"{path} is being rebuilt")
        if maker is None or not maker.cached:
            if maker is not None and not os.path.exists(path):
                raise NotBuiltYet(f"{path} is not built yet")
            return self.sources.digest(path, lambda shard: self._maybe_known(job, shard))
        try:
            record = self.record(maker)
        except UnknownInput:
            record = None
        if record is None:
            raise NotBuiltYet(f"{path} is not built yet")
        return record.outputs[maker.writes.index(path)]["digest"]

    def _maybe_known(self, job: Job, shard: str) -> bool:
        """Might an action on record have read this shard?  One of other samples it did not."""
        if job.rule not in self.samples:
            found = [
                self.store.config(one).get("about", {}) for one in self.store.records(job.rule)
            ]
            self.samples[job.rule] = {s for a in found for s in a.get("samples", {}).values()}
        return bool(self.remote) or identity.sample(shard) in self.samples[job.rule]

    def record(self, job: Job) -> Record | None:
        """The record of a job's action.  UnknownInput while its key is not known."""
        try:
            found, _ = self.key(job)
        except UnknownInput:
            if record := self._by_recipe(job):
                return record
            raise
        if self.records.get(job) is None:
            self.records[job] = record = self.store.lookup(job.rule, found)
            if record and self.writable:
                self.store.used(record)
        return self.records[job]

    # The shared cache

    def recipe(self, job: Job) -> str:
        """The digest of an action by how its inputs are made, in place of what they hold: known before
        any of them is.  UnknownInput where a source's content is not."""
        if job not in self.recipes:
            self.recipes[job] = digest.of_json(self.recipe_fields(job))
        return self.recipes[job]

    def recipe_fields(self, job: Job) -> dict[str, Any]:
        return key.fields(job, lambda path: self._made(job, path))

    def _made(self, job: Job, path: str) -> str:
        maker = self.graph.maker(job, path)
        if maker is None or not maker.cached:
            return self.of(job, path)
        return f"recipe:{self.recipe(maker)}:{maker.writes.index(path)}"

    def _by_recipe(self, job: Job) -> Record | None:
        """A record that came from the shared cache, while an input is not known here.

        None where what it rests on is built in this run: the bytes may be others.
        """
        knows = self.store.knows_recipes
        if job in self.gone or not (knows or self.borrowed) or self._unsettled(job):
            return None
        if job not in self.borrowed and knows:
            with contextlib.suppress(UnknownInput, OSError):
                if found := self.store.of_recipe(job.rule, self.recipe(job)):
                    self.borrowed[job] = found
        return self.borrowed.get(job)

    def _unsettled(self, job: Job) -> bool:
        """Is anything that `job` rests on forced, built in this run, or to be built?"""

        def upset(one: Job) -> bool:
            return one in self.graph.forced or one in self.gone or one in self.finished

        makers = [one for one in self.graph.needs.get(job, {}) if one.cached]
        return any(map(upset, makers)) or any(map(self._unsettled, makers))

    def _tag(self, job: Job) -> str | None:
        """What the shared cache knows a job by; None where we know its record, or it cannot."""
        if not job.cached or job in self.gone or job in self.graph.forced:
            return None
        try:
            return None if self.record(job) else f"ac-{self.key(job)[0]}"
        except (UnknownInput, OSError):
            pass
        try:
            return None if self._unsettled(job) else f"re-{self.recipe(job)}"
        except (UnknownInput, OSError):
            return None

    def look_up(self, jobs: Iterable[Job]) -> bool:
        """Ask the shared cache for the records of jobs that we have none of; did it know any?"""
        if self.remote is None:
            return False
        tags = {job: tag for job in jobs if (tag := self._tag(job))}
        self.remote.ask((job.rule, tag) for job, tag in tags.items())
        known = False
        for job, tag in tags.items():
            found = self.remote.answers.get(tag)
            if found and len(found.record.outputs) == len(job.outputs):
                known = True
                kept = self.records if tag.startswith("ac-") else self.borrowed
                kept[job] = self._adopted(job, found, tag)
        return known

    def _adopted(self, job: Job, found: Any, tag: str) -> Record:
        """The record as this store has it: its own of that key, where the files of that are here."""
        own = self.store.lookup(job.rule, found.record.key)
        if own and all(map(self.store.whole, own.outputs)):
            found = dataclasses.replace(found, record=own)
        if self.writable:
            with self.held(), contextlib.suppress(OSError, Refused):
                self.store.adopt(found.record, found.config, tag.removeprefix("re-"))
        return found.record

    def share(self, jobs: Iterable[Job]) -> None:
        """Send what the shared cache lacks of jobs that are on record here: it may be younger than they."""
        mine = {}
        for job in jobs:
            with contextlib.suppress(UnknownInput, OSError):
                record = self.record(job) if job.cached and job not in self.borrowed else None
                if record and (recipe := self.recipe_of_record(job)):
                    mine[job] = record, recipe
        self.remote.ask((record.rule, f"re-{recipe}") for record, recipe in mine.values())
        for job, (record, recipe) in mine.items():
            if not self.remote.answers.get(f"re-{recipe}"):
                self.remote.send(record, recipe, self.blobs_read(job))

    def blobs_read(self, job: Job) -> list[str]:
        """The files of the store that a job, and all that it rests on, were made of, by their digests."""
        found: set[str] = set()
        for maker in (one for one in self.graph.way(job) if one.cached):
            with contextlib.suppress(UnknownInput, OSError):
                found.update(record.files if (record := self.record(maker)) else ())
        return sorted(found)

    def recipe_of_record(self, job: Job) -> str:
        """The recipe that the bytes of a job's record follow from; empty where they do not: an input that
        was edited while a step ran is in no recipe."""
        try:
            return self.recipe(job) if self._follows(job) else ""
        except (UnknownInput, OSError):
            return ""

    def way(self, job: Job) -> dict[str, Any]:
        """How a job came to its files: which action made each input, and its recipe where that is known."""
        makers = self.graph.needs.get(job, {}).items()
        cached = [(one, paths) for one, paths in makers if one.cached]
        reads = {
            path: (one.rule, self.known_key(one)) for one, paths in cached for path in sorted(paths)
        }
        found = {"writes": job.writes, "reads": reads, "recipe": self.recipe_of_record(job)}
        return found | ({"inputs": self.recipe_fields(job)["inputs"]} if found["recipe"] else {})

    def _follows(self, job: Job) -> bool:
        """Did each action on the way give what its record says, of the inputs that it has now?"""
        for maker, paths in self.graph.needs.get(job, {}).items():
            if not maker.cached:
                continue
            record = self.record(maker)
            if record is None or not self._follows(maker):
                return False
            given = {path: record.outputs[maker.writes.index(path)]["digest"] for path in paths}
            if any(self.made.get(path, name) != name for path, name in given.items()):
                return False
        return True

    def elsewhere(self, job: Job, record: Record) -> bool:
        """Does the shared cache say that it has what we have on record, but not the bytes of?"""
        if self.remote is None or job in self.gone:
            return False
        if record.key not in self.remote.known:
            self.remote.ask([(job.rule, f"ac-{record.key}")])
        return record.key in self.remote.known

    def give_up(self, job: Job) -> None:
        """The files on record are nowhere: the job is decided as if the shared cache knew nothing of it."""
        self.gone.add(job)
        for known in (self.keys, self.records, self.borrowed):
            known.clear()  # keys of what rests on it, too, were of the bytes that do not come

    def unchanged(self, job: Job, path: str) -> bool:
        """Does the input still hold what it did when the job was decided?"""
        if job.ancient(path):
            return True
        maker = self.graph.maker(job, path)
        if maker is None or not maker.cached:
            return self.sources.unchanged(path)
        return digest.of(path) == self.of(job, path)

    def forget(self, paths: list[str]) -> None:
        """A job outside the cache wrote `paths`: what rests on them is decided again."""
        for path in paths:
            self.sources.seen.pop(path, None)
        for known in (self.keys, self.records, self.recipes, self.borrowed):
            known.clear()

    def held(self) -> contextlib.AbstractContextManager:
        """While files come and go, gc waits."""
        if self.writable and self.store.root.exists():
            return self.store.locked("content", shared=True)
        return contextlib.nullcontext()
