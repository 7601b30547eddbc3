"""What each input of a run holds, as far as it is known, and so which actions are on record."""

import contextlib
import os
from typing import Any

from ingot.base import claim, digest, memo
from ingot.driver.cache import key
from ingot.driver.cache.shared import Shared
from ingot.driver.cache.sources import NotBuiltYet, Sources, UnknownInput
from ingot.driver.catalogue.job import Graph, Job
from ingot.model.checkpoint import identity
from ingot.store.records import Record, Store


def stamps(job: Job) -> dict[str, str]:
    """Which inputs a job has: an edit that is taken back is an edit.

    One more name of an artifact is none: the store links them at any time, which changes their ctime.
    """
    paths = [path for path in job.reads if not job.ancient(path) and os.path.exists(path)]
    return {
        path: str((claim.identity if path.startswith("artifacts/") else memo.stamp_of)(path))
        for path in paths
    }


class Contents:
    """Keys and records of the jobs of one run, found when they are asked for."""

    def __init__(self, graph: Graph, store: Store, dry: bool = False, remote: Any = None):
        self.graph, self.store = graph, store
        self.writable = not dry and store.prepare()  # a dry run waits for no lock
        self.sources, self.shared = Sources(), Shared(self, remote)
        self.finished: set[Job] = set()
        self.made: dict[str, str] = {}  # path: digest of what this run built
        self.keys: dict[Job, tuple[str, dict]] = {}  # with the fields
        self.records: dict[Job, Record | None] = {}  # once the key is known
        self.samples: dict[str, set[str]] = {}  # rule: samples of the shards that are on record

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
            return self.shared.borrowed[job].key if job in self.shared.borrowed else None

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
        """Could a recorded action have read this shard?  Not if its samples differ."""
        if job.rule not in self.samples:
            found = [
                self.store.config(one).get("about", {}) for one in self.store.records(job.rule)
            ]
            self.samples[job.rule] = {s for a in found for s in a.get("samples", {}).values()}
        return bool(self.shared.remote) or identity.sample(shard) in self.samples[job.rule]

    def record(self, job: Job) -> Record | None:
        """The record of a job's action.  UnknownInput while its key is not known."""
        try:
            found, _ = self.key(job)
        except UnknownInput:
            if record := self.shared.by_recipe(job):
                return record
            raise
        if self.records.get(job) is None:
            self.records[job] = record = self.store.lookup(job.rule, found)
            if record and self.writable:
                self.store.used(record)
        return self.records[job]

    def way(self, job: Job) -> dict[str, Any]:
        """How a job came to its files: which action made each input, and its recipe where that is known."""
        makers = self.graph.needs.get(job, {}).items()
        cached = [(one, paths) for one, paths in makers if one.cached]
        reads = {
            path: (one.rule, self.known_key(one)) for one, paths in cached for path in sorted(paths)
        }
        found = {"writes": job.writes, "reads": reads, "recipe": self.shared.recipe_of_record(job)}
        return found | (
            {"inputs": self.shared.recipe_fields(job)["inputs"]} if found["recipe"] else {}
        )

    def blobs_read(self, job: Job) -> list[str]:
        """The files of the store that a job, and all that it rests on, were made of, by their digests."""
        found: set[str] = set()
        for maker in (one for one in self.graph.way(job) if one.cached):
            with contextlib.suppress(UnknownInput, OSError):
                found.update(record.files if (record := self.record(maker)) else ())
        return sorted(found)

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
        self.keys.clear()
        self.records.clear()
        self.shared.forget()

    def held(self) -> contextlib.AbstractContextManager:
        """While files come and go, gc waits."""
        if self.writable and self.store.root.exists():
            return self.store.locked("content", shared=True)
        return contextlib.nullcontext()
