"""What a finished job wrote goes into the store, and its action on record."""

import contextlib
import csv
import errno
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ingot.base import claim, digest
from ingot.base.refused import Refused
from ingot.driver.cache import key
from ingot.driver.cache.contents import Contents, UnknownInput
from ingot.driver.catalogue.formats.rows import RECORD
from ingot.driver.catalogue.job import Job
from ingot.driver.forecast.costs import Costs
from ingot.store import aside
from ingot.store.blobs import SMALL
from ingot.store.leases import note_folder
from ingot.store.records import Action, Record

QUIET = 2.0  # seconds of waiting for the disk at the end of a run; longer is said


class Ingest:
    """Takes in what the jobs of one run wrote."""

    def __init__(
        self, contents: Contents, costs: Costs, asked: Callable[[Job], dict], short: bool = False
    ):
        """`short`: the disk is, so that what stands in artifacts/ is not copied."""
        self.contents, self.store, self.costs = contents, contents.store, costs
        self.asked = asked  # of a cluster, for a job: empty where there is none
        self.short = short
        self.blobs: dict[str, list[str]] = {}  # path: the files that it is, or holds
        self.fresh: set[str] = set()  # of them, those that this run brought into the store
        self.disk: threading.Thread | None = None
        self.began = time.time()
        self.syncing: queue.Queue[Record] = queue.Queue()

    def finished(self, job: Job) -> None:
        """The output stays where it is whatever happens here."""
        contents = self.contents
        contents.finished.add(job)
        if not job.cached:
            contents.forget(job.writes)
            return
        try:
            before = contents.records.get(job) or contents.shared.borrowed.get(job)
            contents.made |= {path: digest.of(path) for path in job.writes}
            if before and [one["digest"] for one in before.outputs] != [
                contents.made[path] for path in job.writes
            ]:
                contents.forget([])  # other bytes: what rests on them is decided again
            if changed := self.changed(job):
                text = f"{changed[0]}: changed while {job.writes[0]} was built; it is built again"
                print(f"{text} when it is next asked for", file=sys.stderr)
                return
            for path in contents.sources.unread.keys() & set(job.reads):
                contents.sources.digest(path, lambda _: True)
            contents.keys.pop(job, None)
            if contents.writable:
                with contents.held():
                    remote = contents.shared.remote  # is sent what the store has
                    sends = bool(remote) and remote.writes and not remote.why_not
                    twice = sends or not (self.short or streamed(job))
                    outputs = [self._take(path, twice) for path in job.writes]
                    parts = {part: _file(outputs[0], part) for part in job.parts}
                    records = {job: self._record(job, outputs, self._cost(job, outputs))}
                    for part, output in parts.items():
                        contents.graph.needs[part] = contents.graph.needs.get(job, {})
                        records[part] = self._record(part, [output], {})
                note_folder(self.store, [record.key for record in records.values()])
                if not twice and not all(map(self.store.whole, outputs)):
                    self._only_here(job)
                for path in filter(os.path.isfile, job.writes):  # a folder's names another digest
                    aside.drop_record(self.store, Path(path + RECORD), contents.made[path])
                for one, record in records.items():
                    self._to_disk(record)
                    if contents.shared.remote:
                        recipe = contents.shared.recipe_of_record(one)
                        contents.shared.remote.send(record, recipe, contents.blobs_read(one))
            else:
                self._only_here(job)
        except (OSError, ValueError, UnknownInput, Refused) as error:
            why = str(error)
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                why = f"{self.store.root} is full; `ingot store gc` makes room, INGOT_STORE names another"
            print(f"{job.writes[0]}: built, but not stored: {why}", file=sys.stderr)
            self._only_here(job)

    def changed(self, job: Job) -> list[str]:
        """Inputs, or else files of the store that they rest on, that are not what was decided by."""
        # what came in pieces was checked as it came, and is gone
        gone = streamed(job)
        read = [path for path in job.reads if not gone or os.path.lexists(path)]
        found = [path for path in read if not self.contents.unchanged(job, path)]
        return found or self.store.damaged_since(self.began, self.contents.blobs_read(job))

    def torn(self, job: Job) -> str | None:
        """Of these, one that the job may have read in two states.

        Not its code, which Python read as it began; nor what holds the same, and has another time alone.
        """
        code = {path for one in job.inputs if one.role == "code" for path in one.paths}
        for path in self.changed(job):
            if path not in job.reads:
                return path
            if path not in code and digest.of(path) != self.contents.of(job, path):
                return path
        return None

    def _record(self, job: Job, outputs: list[dict], cost: dict) -> Record:
        found, fields = self.contents.key(job)
        about = {**key.about(job), "way": self.contents.way(job)}
        action = Action(job.rule, found, fields, outputs, cost, about)
        self.contents.records[job] = record = self.store.record(action)
        return record

    def _only_here(self, job: Job) -> None:
        """Later, these are to be known as ours although no store has them."""
        with contextlib.suppress(OSError):
            for path in job.writes:
                aside.note(path, self.contents.made.get(path) or digest.of(path))

    def close(self) -> None:
        """The run ends when all that it stored is on the disk, and in the index."""
        if self.disk is None:
            if self.contents.shared.remote:
                self.contents.shared.remote.close()
            return
        with self.syncing.all_tasks_done:
            done = lambda: not self.syncing.unfinished_tasks  # noqa: E731
            if not self.syncing.all_tasks_done.wait_for(done, QUIET):
                left = self.syncing.unfinished_tasks
                print(f"store: writing {left} artifacts to the disk", file=sys.stderr, flush=True)
                self.syncing.all_tasks_done.wait_for(done)
        with contextlib.suppress(OSError):
            self.store.index()
        if self.contents.shared.remote:
            self.contents.shared.remote.close()

    def _to_disk(self, record: Record) -> None:
        """Meanwhile the build goes on.  One that is stopped does not wait for its disk."""
        if self.disk is None:
            self.disk = threading.Thread(target=self._sync, name="disk", daemon=True)
            self.disk.start()
        self.syncing.put(record)

    def _sync(self) -> None:
        while True:
            record = self.syncing.get()
            with contextlib.suppress(OSError, Refused):  # gone meanwhile: then nobody needs it
                self.store.persist_files(record)
            self.syncing.task_done()

    def _take(self, path: str, twice: bool) -> dict:
        self.blobs[path] = blobs(path)
        self.fresh.update(b for b in self.blobs[path] if not self.store.blob(b).exists())
        taken = self.store.take(Path(path), twice)
        if taken["digest"] != self.contents.made[path]:
            raise OSError(f"{path} changed while it was stored")
        return {**taken, "title": os.path.basename(path)}

    def _cost(self, job: Job, outputs: list[dict]) -> dict:
        """What the job took, and what it was expected to take by the constants alone."""
        found = measured(job) | {"bytes": sum(self._own_bytes(output) for output in outputs)}
        whole = "seconds" in found and "peak_rss_mb" in found
        found |= {"asked": self.asked(job)} if self.asked(job) else {}
        return found | (self.costs.expected(job) if whole else {})

    def _own_bytes(self, output: dict) -> int:
        """Bytes that were nowhere before: large files of a folder may be links of its inputs."""
        large = (e for e in output.get("entries", ()) if e.get("size", 0) >= SMALL)
        return output["size"] - sum(e["size"] for e in large if e["digest"] not in self.fresh)


def streamed(job: Job) -> bool:
    """Was it written by a stream, whose pieces are gone?"""
    return bool(claim.claimed(job.writes[0]).get("streamed"))


def _file(folder: dict, part: Job) -> dict:
    """An output as of a file by itself, of one that lies in a folder.  Refused: it is not there."""
    title = os.path.basename(part.writes[0])
    entry = next((one for one in folder["entries"] if one["path"] == title), {})
    if "digest" not in entry:
        raise Refused(f"it lacks {title}")
    kept = {name: entry[name] for name in ("digest", "size")}
    return {"kind": "file", **kept, "title": title}


def blobs(path: str) -> list[str]:
    """The digests of a file, or of the files in a folder."""
    if not os.path.isdir(path):
        return [digest.of(path)]
    return [entry["digest"] for entry in digest.tree(Path(path))[1] if "digest" in entry]


def measured(job: Job) -> dict:
    """Seconds and bytes moved as Snakemake measured them, peak memory as the step said."""
    if not job.benchmark or not os.path.exists(job.benchmark):
        return {}
    with open(job.benchmark) as file:
        row = next(csv.DictReader(file, delimiter="\t"), {})
    names = {"s": "seconds", "max_rss": "peak_rss_mb", "io_in": "read_mb", "io_out": "written_mb"}
    found = {
        names[name]: float(row[name]) for name in names if row.get(name, "NA") not in ("NA", "-")
    }
    notes = [claim.left(path) for path in job.writes]
    if peaks := [note["peak_rss"] for note in notes if isinstance(note.get("peak_rss"), int)]:
        found["peak_rss_mb"] = max(peaks) / 1e6
    found["cores"] = next((note["cores"] for note in notes if note.get("cores")), claim.cores())
    return found
