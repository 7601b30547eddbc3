"""What the shared cache knows of a run's jobs, and what it is told of them.

It knows an action by its key, and by its recipe: how its inputs are made, in place of what they hold.
"""

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.cache import key
from ingot.driver.cache.sources import UnknownInput
from ingot.driver.catalogue.job import Job
from ingot.store.records import Record


class Shared:
    """Recipes of the jobs of one run, and the records that the shared cache has of them."""

    def __init__(self, contents: Any, remote: Any = None):
        self.contents = contents  # a contents.Contents
        self.remote = remote  # a remote.Remote, whose imports take 0.1 s; None where there is none
        self.recipes: dict[Job, tuple[str, dict[str, Any]]] = {}  # with the fields
        self.borrowed: dict[Job, Record] = {}  # by recipe, of whose inputs not all are known
        self.gone: set[Job] = set()  # whose files the shared cache did not give

    def recipe(self, job: Job) -> str:
        """The digest of an action by how its inputs are made, in place of what they hold: known before
        any of them is.  UnknownInput where a source's content is not."""
        return self._recipe(job)[0]

    def recipe_fields(self, job: Job) -> dict[str, Any]:
        return self._recipe(job)[1]

    def _recipe(self, job: Job) -> tuple[str, dict[str, Any]]:
        if job not in self.recipes:
            found = key.fields(job, lambda path: self._made(job, path))
            self.recipes[job] = (digest.of_json(found), found)
        return self.recipes[job]

    def _made(self, job: Job, path: str) -> str:
        maker = self.contents.graph.maker(job, path)
        if maker is None or not maker.cached:
            return self.contents.of(job, path)
        return f"recipe:{self.recipe(maker)}:{maker.writes.index(path)}"

    def by_recipe(self, job: Job) -> Record | None:
        """A record that came from the shared cache, while an input is not known here.

        None where what it rests on is built in this run: the bytes may be others.
        """
        knows = self.contents.store.knows_recipes
        if job in self.gone or not (knows or self.borrowed) or self._unsettled(job):
            return None
        if job not in self.borrowed and knows:
            with contextlib.suppress(UnknownInput, OSError):
                if found := self.contents.store.of_recipe(job.rule, self.recipe(job)):
                    self.borrowed[job] = found
        return self.borrowed.get(job)

    def _unsettled(self, job: Job) -> bool:
        """Is anything that `job` rests on forced, built in this run, or to be built?"""
        upset = self.contents.graph.forced | self.gone | self.contents.finished
        return not upset.isdisjoint(self.contents.graph.way(job, cached=True))

    def _tag(self, job: Job) -> str | None:
        """What the shared cache knows a job by; None where we know its record, or it cannot."""
        if not job.cached or job in self.gone or job in self.contents.graph.forced:
            return None
        try:
            return None if self.contents.record(job) else f"ac-{self.contents.key(job)[0]}"
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
                kept = self.contents.records if tag.startswith("ac-") else self.borrowed
                kept[job] = self._adopted(job, found, tag)
        return known

    def _adopted(self, job: Job, found: Any, tag: str) -> Record:
        """The record as this store has it: its own of that key, where the files of that are here."""
        own = self.contents.store.lookup(job.rule, found.record.key)
        if own and all(map(self.contents.store.whole, own.outputs)):
            found = dataclasses.replace(found, record=own)
        if self.contents.writable:
            with self.contents.held(), contextlib.suppress(OSError, Refused):
                self.contents.store.adopt(found.record, found.config, tag.removeprefix("re-"))
        return found.record

    def share(self, jobs: Iterable[Job]) -> None:
        """Send what the shared cache lacks of jobs that are on record here: it may be younger than they."""
        mine = {}
        for job in jobs:
            with contextlib.suppress(UnknownInput, OSError):
                record = (
                    self.contents.record(job) if job.cached and job not in self.borrowed else None
                )
                if record and (recipe := self.recipe_of_record(job)):
                    mine[job] = record, recipe
        self.remote.ask((record.rule, f"re-{recipe}") for record, recipe in mine.values())
        for job, (record, recipe) in mine.items():
            if not self.remote.answers.get(f"re-{recipe}"):
                self.remote.send(record, recipe, self.contents.blobs_read(job))

    def recipe_of_record(self, job: Job) -> str:
        """The recipe that the bytes of a job's record follow from; empty where they do not: an input that
        was edited while a step ran is in no recipe."""
        try:
            return self.recipe(job) if self._follows(job) else ""
        except (UnknownInput, OSError):
            return ""

    def _follows(self, job: Job) -> bool:
        """Did each action on the way give what its record says, of the inputs that it has now?"""
        contents = self.contents
        for one in (job, *contents.graph.way(job, cached=True)):
            for maker, paths in contents.graph.needs.get(one, {}).items():
                record = contents.record(maker) if maker.cached else None
                if maker.cached and record is None:
                    return False
                for path in paths if record else ():
                    given = record.outputs[maker.writes.index(path)]["digest"]
                    if contents.made.get(path, given) != given:
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
        self.contents.forget(
            []
        )  # keys of what rests on it, too, were of the bytes that do not come

    def forget(self) -> None:
        """What inputs hold has changed."""
        self.recipes.clear()
        self.borrowed.clear()
