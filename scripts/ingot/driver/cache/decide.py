"""What has to run, what is restored, and why: decided before Snakemake schedules anything.

A target whose action is on record is restored, and nothing it was made from is looked at.  A job whose
input another job has yet to make is decided again when that one is done: the same bytes end the matter.
"""

import os
from dataclasses import dataclass, field

from ingot.base import digest
from ingot.driver.cache.contents import Contents, NotBuiltYet, UnknownInput
from ingot.driver.cache.differences import nearest
from ingot.driver.catalogue.job import Graph, Job


@dataclass
class Decision:
    """For each job: run it, restore some of its files, or neither."""

    run: dict[Job, str] = field(default_factory=dict)  # why
    restore: dict[Job, dict[str, dict]] = field(default_factory=dict)  # path: output on record


class Decider:
    """The decisions over one graph, from what is known of its contents."""

    def __init__(self, contents: Contents):
        self.contents, self.store = contents, contents.store
        self.bad: set[Job] = set()  # jobs whose record could not be restored
        self.reasons: dict[str, str] = {}  # key: why it has to run

    @property
    def graph(self) -> Graph:
        return self.contents.graph

    def decide(self, done: frozenset[Job] | set[Job] = frozenset()) -> Decision:
        """Walk from the targets to what they are made from, no further than needed.

        `done` are the jobs that have run or are running.
        """
        # until the shared cache has nothing to add: by an input's record a key is known
        while True:
            decision, learned = self._walk(done)
            if not learned:
                return decision

    def _walk(self, done: frozenset[Job] | set[Job]) -> tuple[Decision, bool]:
        """The decision by what is known; and whether more became known on the way."""
        decision, seen, learned = Decision(), {}, False
        stack = [(job, None) for job in self.graph.targets]
        stack += [(job, None) for job in self.graph.jobs if job in self.graph.forced - done]
        asked = 0  # of the stack, those that the shared cache was asked for: all at once
        while stack:
            if asked < len(stack):
                learned |= self.contents.shared.look_up(
                    job for job, _ in stack[asked:] if job not in done
                )
            job, files = stack.pop()
            asked = len(stack)
            wanted = set(job.writes if files is None else files) - seen.get(job, set())
            first = job not in seen
            seen.setdefault(job, set()).update(wanted)
            if job in done or job in decision.run or (not wanted and not first):
                continue
            if not job.outputs:
                stack += self.graph.needs[job].items()
                continue
            why = self._settle(job, wanted, decision)
            if why is not None:
                decision.run[job] = why
                decision.restore.pop(job, None)
                stack += self.graph.needs[job].items()
        return decision, learned

    def _settle(self, job: Job, wanted: set[str], decision: Decision) -> str | None:
        """Why `job` must run; None when it need not, with what is to be restored noted."""
        if job in self.graph.forced:
            return "forced on the command line"
        if not job.cached:
            if job.asked:
                return "done each time that it is asked for"
            missing = [path for path in wanted if not os.path.exists(path)]
            return f"{missing[0]} is missing" if missing else None
        try:
            record = self.contents.record(job)
        except NotBuiltYet as reason:
            return f"{reason}; will be decided once it is"
        except UnknownInput as reason:
            return str(reason)
        if record is None or job in self.bad:
            return self._nearest(job)
        for path in sorted(wanted):
            output = record.outputs[job.writes.index(path)]
            if os.path.exists(path) and digest.of(path) == output["digest"]:
                continue
            if not self.store.whole(output) and not self.contents.shared.elsewhere(job, record):
                return f"{path} was built before, but its bytes have left the store"
            decision.restore.setdefault(job, {})[path] = output
        return None

    def _nearest(self, job: Job) -> str:
        key, fields = self.contents.keys[job]
        if key not in self.reasons:
            self.reasons[key] = nearest(self.store, job, fields).text
        return self.reasons[key]
