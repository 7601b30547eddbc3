"""What past jobs took, beside what the constants said of them: so a forecast learns this machine."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ingot.base import claim
from ingot.store.records import Store

MANY = 200  # records of a rule that are looked at, the youngest first
NOTHING = (1.0, 1.0, 1.0)
Numbers = tuple[float, float, float]  # seconds, memory in bytes, bytes written


def ratios(these: Numbers, those: Numbers) -> Numbers:
    first, second, third = (a / b if b else 1.0 for a, b in zip(these, those, strict=True))
    return first, second, third


@dataclass(frozen=True)
class PastJob:
    """A job on record, done on as many cores as one of now would be."""

    key: str
    step: str
    kind: str
    units: float  # of work
    measured: Numbers
    expected: Numbers  # by the constants alone

    @property
    def factors(self) -> Numbers:
        return ratios(self.measured, self.expected)


class Past:
    """The jobs on record of one store, by step."""

    def __init__(self, store: Store | None, cores: Callable[[str], int] = lambda _: claim.cores()):
        self.store, self.cores = store, cores  # that a job of a step will have
        self.steps: dict[str, list[PastJob]] = {}

    def jobs(self, step: str) -> list[PastJob]:
        if step not in self.steps:
            self.steps[step] = list(self._read(step))
        return self.steps[step]

    def _read(self, step: str) -> Iterator[PastJob]:
        if self.store is None:
            return
        for rule in {place.name for place in self.store.root.glob(f"actions/{step}*")}:
            for record in self.store.youngest(rule, MANY):
                cost = self.store.config(record).get("cost", {})
                if cost.get("step") == step and cost["cores"] == self.cores(step):
                    measured = (cost["seconds"], cost["peak_rss_mb"] * 1e6, cost["bytes"])
                    expected = tuple(cost["expected"])
                    yield PastJob(record.key, step, cost["kind"], cost["units"], measured, expected)

    def factors(self, step: str, kind: str, units: float) -> Numbers:
        """Measured over expected, of the past job most like one of these."""
        near = self.nearest(step, kind, units)
        return near.factors if near else NOTHING

    def nearest(self, step: str, kind: str, units: float, but: str = "") -> PastJob | None:
        """The past job of the same step and kind that did most nearly as much work."""
        alike = [job for job in self.jobs(step) if job.kind == kind and job.key != but]
        return min(
            alike,
            key=lambda job: abs(math.log((job.units + 1e-3) / (units + 1e-3))),
            default=None,
        )

    def errors(self, steps: Iterable[str]) -> list[Numbers]:
        """Each past job as it would have been forecast from the others: how far that is off."""
        found = []
        for step in steps:
            for job in self.jobs(step):
                if near := self.nearest(step, job.kind, job.units, but=job.key):
                    found.append(ratios(job.factors, near.factors))
        return found


def spread(ratios: Iterable[float]) -> float:
    """The median of how many times too much or too little."""
    off = sorted(max(r, 1 / r) for r in ratios if r > 0)
    return off[len(off) // 2] if off else 1.0
