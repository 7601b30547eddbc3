"""When a run will end, as it goes: its jobs' forecasts, less what those that run have taken already."""

import time
from collections.abc import Iterable, Mapping

from ingot.driver.catalogue.job import Graph, Job
from ingot.driver.forecast.costs import Costs, Forecast
from ingot.driver.forecast.schedule import length


class Ending:
    """Of so many jobs at once, in `most` bytes of memory."""

    def __init__(self, costs: Costs, at_once: int, most: float):
        self.costs, self.at_once, self.most = costs, at_once, most
        self.forecasts: dict[Job, Forecast] = {}

    def at(self, graph: Graph, left: Iterable[Job], running: Mapping[str, dict]) -> float | None:
        """Seconds since 1970; None where a job has no forecast yet.  `running`: by the first output."""
        now = time.time()

        def seconds(job: Job) -> float | None:
            if not (one := self._of(job)):
                return None
            begun = running.get(job.writes[0])
            return max(0.0, one.seconds - (now - begun["since"])) if begun else one.seconds

        def share(job: Job) -> float:
            one = self._of(job)
            return one.memory / self.most if one else 0.0

        found = length(graph, left, seconds, self.at_once, share)
        return None if found is None else now + found

    def _of(self, job: Job) -> Forecast | None:
        if job not in self.forecasts and (found := self.costs.of(job)):
            self.forecasts[job] = found
        return self.forecasts.get(job)
