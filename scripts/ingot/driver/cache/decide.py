"""What has to run, what is restored, and why: decided before Snakemake schedules anything.

A target whose action is on record is restored, and nothing above it is looked at.  A job whose input
another job has yet to make is decided anew when that one is done: the same bytes end the matter.
"""

import contextlib
import csv
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ingot.checkpoint import identity as weights
from ingot.driver.cache import key as actions
from ingot.driver.cache.differences import nearest
from ingot.driver.cache.key import Later, Unknown
from ingot.driver.forecast import costs
from ingot.files import digest
from ingot.files.atomic import memory_note
from ingot.store.blobs import SMALL, Record, Store


@dataclass
class Decision:
    """For each job: run it, restore some of its files, or neither."""

    run: dict = field(default_factory=dict)  # job: why
    restore: dict = field(default_factory=dict)  # job: {file: output of its record}


class Plan:
    """The decisions over one DAG of Snakemake's."""

    def __init__(self, dag, forced):
        self.dag, self.forced = dag, forced
        self.store = Store()
        self.writable = self.store.prepare()
        self.sources = actions.Sources()
        self.keys: dict = {}  # job: (key, fields)
        self.records: dict = {}  # job: its record or None, once its key is known
        self.made: dict[str, str] = {}  # path: digest of what this run built
        self.bad: set = set()  # jobs whose record could not be restored
        self.samples: dict[str, set[str]] = {}  # rule: samples of the shards that are on record
        self.reasons: dict[str, str] = {}  # key: why it has to run
        self.blobs: dict[str, list[str]] = {}  # path: the files that it is, or holds
        self.fresh: set[str] = set()  # of them, those that this run brought into the store
        self.costs: costs.Costs | None = None

    # What is known

    def key(self, job) -> tuple[str, dict]:
        if job not in self.keys:
            found = actions.fields(job, lambda path: self.content(job, path))
            self.keys[job] = (digest.of_json(found), found)
        return self.keys[job]

    def content(self, job, path: str) -> str:
        """What input `path` of `job` holds, or will hold."""
        if path in self.made:
            return self.made[path]
        maker = self.maker(job, path)
        if maker is not None and self.forced(maker) and maker not in self.dag._finished:
            raise Later(f"{path} is made anew")
        if maker is None or not cached(maker):
            if maker is not None and not os.path.exists(path):
                raise Later(f"{path} is not made yet")
            return self.sources.digest(path, lambda shard: self._maybe_known(job, shard))
        try:
            record = self.record(maker)
        except Unknown:
            record = None
        if record is None:
            raise Later(f"{path} is not made yet")
        return record.outputs[list(maker.output).index(path)]["digest"]

    def maker(self, job, path: str):
        """The job that makes input `path` of `job`; None when it is a source."""
        return next((j for j, files in self.dag.dependencies[job].items() if path in files), None)

    def _maybe_known(self, job, shard: str) -> bool:
        """Might an action on record have read this shard?  One of other samples it did not."""
        rule = job.rule.name
        if rule not in self.samples:
            found = [
                self.store.config(record).get("about", {}) for record in self.store.records(rule)
            ]
            self.samples[rule] = {s for about in found for s in about.get("samples", {}).values()}
        return weights.sample(shard) in self.samples[rule]

    def record(self, job) -> Record | None:
        key, _ = self.key(job)
        if job not in self.records:
            self.records[job] = found = self.store.lookup(job.rule.name, key)
            if found and self.writable:
                self.store.used(found)
        return self.records[job]

    # Deciding

    def decide(self, done=frozenset()) -> Decision:
        """Walk from the targets up, no further than needed.  `done` are jobs that have run."""
        decision, seen = Decision(), {}
        stack = [(job, None) for job in self.dag.targetjobs]
        stack += [(job, None) for job in self.dag.jobs if self.forced(job) and job not in done]
        while stack:
            job, files = stack.pop()
            wanted = set(self._asked(job) if files is None else files) - seen.get(job, set())
            first = job not in seen
            seen.setdefault(job, set()).update(wanted)
            if job in done or job in decision.run or (not wanted and not first):
                continue
            if not job.output:
                stack += self.dag.dependencies[job].items()
                continue
            why = self._settle(job, wanted, decision)
            if why is not None:
                decision.run[job] = why
                decision.restore.pop(job, None)
                stack += self.dag.dependencies[job].items()
        return decision

    def _asked(self, job) -> list[str]:
        named = [path for path in job.output if path in self.dag.targetfiles]
        return named or list(job.output)

    def _settle(self, job, wanted: set[str], decision: Decision) -> str | None:
        """Why `job` must run; None when it need not, with what is to be restored noted."""
        if self.forced(job):
            return "forced on the command line"
        if not cached(job):
            absent = [path for path in wanted if not os.path.exists(path)]
            return f"{absent[0]} is not there" if absent else None
        try:
            record = self.record(job)
        except Later as reason:
            return f"{reason}; decided when it is known"
        except Unknown as reason:
            return str(reason)
        if record is None or job in self.bad:
            return self._reason(job)
        for path in sorted(wanted):
            output = record.outputs[list(job.output).index(path)]
            if os.path.exists(path) and digest.of(path) == output["digest"]:
                continue
            if not self.store.whole(output):
                return f"{path} is on record, but its bytes are not in the store"
            decision.restore.setdefault(job, {})[path] = output
        return None

    def _reason(self, job) -> str:
        key, fields = self.keys[job]
        if key not in self.reasons:
            self.reasons[key] = nearest(self.store, job, fields).text
        return self.reasons[key]

    # Doing

    def restore(self, decision: Decision) -> bool:
        """Put the files back; False when one could not be, and the decision has to be taken anew."""
        well = True
        with self._held():
            for job, files in decision.restore.items():
                for path, output in files.items():
                    try:
                        self.store.restore(output, Path(path))
                    except OSError as error:
                        print(f"{path}: not restored ({error}); it is built again", file=sys.stderr)
                        self.bad.add(job)
                        well = False
        return well

    def _held(self):
        """While files come and go, gc waits."""
        if self.writable and self.store.root.exists():
            return self.store.locked("content", shared=True)
        return contextlib.nullcontext()

    def finished(self, job) -> None:
        """Put what `job` wrote into the store, and the action on record.

        The output stays where it is whatever happens here.
        """
        if not cached(job):
            for path in job.output:  # what rests on it is decided anew
                self.sources.seen.pop(path, None)
            self.keys.clear()
            self.records.clear()
            return
        try:
            for path in job.output:
                self.made[path] = digest.of(path)
            if changed := [path for path in job.input if not self._stands(job, path)]:
                text = f"{changed[0]}: changed while {job.output[0]} was built; it is built again"
                print(f"{text} when it is next asked for", file=sys.stderr)
                return
            for path in job.input:
                if path in self.sources.unread:
                    self.sources.digest(path, lambda _: True)
            self.keys.pop(job, None)
            key, found = self.key(job)
            if not self.writable:
                return
            with self._held():
                outputs = []
                for path in job.output:
                    self.blobs[path] = blobs(path)
                    new = [b for b in self.blobs[path] if not self.store.blob(b).exists()]
                    self.fresh.update(new)
                    taken = self.store.take(Path(path))
                    if taken["digest"] != self.made[path]:
                        raise OSError(f"{path} changed while it was stored")
                    outputs.append({**taken, "title": os.path.basename(path)})
                self.records[job] = self.store.record(
                    job.rule.name, key, found, outputs, self._cost(job, outputs), actions.about(job)
                )
        except (OSError, Unknown) as error:
            print(f"{job.output[0]}: built, but not stored ({error})", file=sys.stderr)

    def _cost(self, job, outputs: list[dict]) -> dict:
        """What the job took, and what it was expected to take by the constants alone."""
        found = cost(job) | {"bytes": sum(self._own_bytes(output) for output in outputs)}
        expected = costs.expected(self.costs, job) if self.costs and "seconds" in found else {}
        return found | expected

    def _own_bytes(self, output: dict) -> int:
        """Bytes that were nowhere before: large files of a folder may be links of its inputs."""
        large = (e for e in output.get("entries", ()) if e.get("size", 0) >= SMALL)
        return output["size"] - sum(e["size"] for e in large if e["digest"] not in self.fresh)

    def _stands(self, job, path: str) -> bool:
        """Does the input still hold what it did when the job was decided?"""
        maker = self.maker(job, path)
        if maker is None or not cached(maker):
            return path.is_ancient or self.sources.stand(path)
        return path.is_ancient or digest.of(path) == self.content(job, path)


def members(jobs):
    """The jobs, those of groups one by one."""
    for job in jobs:
        yield from job if job.is_group() else [job]


def cached(job) -> bool:
    """Is what the job writes decided by its action alone?  A rule says no by params: volatile."""
    return bool(job.output) and not job.params.get("volatile")


def blobs(path: str) -> list[str]:
    """The digests of a file, or of the files in a folder."""
    if not os.path.isdir(path):
        return [digest.of(path)]
    return [entry["digest"] for entry in digest.tree(Path(path))[1] if "digest" in entry]


def cost(job) -> dict:
    """Seconds and bytes moved as Snakemake measured them, peak memory as the step said."""
    if not job.benchmark or not os.path.exists(job.benchmark):
        return {}
    with open(job.benchmark) as file:
        row = next(csv.DictReader(file, delimiter="\t"), {})
    names = {"s": "seconds", "max_rss": "peak_rss_mb", "io_in": "read_mb", "io_out": "written_mb"}
    found = {
        names[name]: float(row[name]) for name in names if row.get(name, "NA") not in ("NA", "-")
    }
    notes = [note for path in job.output if (note := memory_note(path)) and note.exists()]
    if notes:
        found["peak_rss_mb"] = max(int(note.read_text()) for note in notes) / 1e6
    return found
