"""What one job will take: seconds, peak memory, bytes written; from its row, corrected by the past."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model
from ingot.driver.forecast.past import Past

CONFIGS = "INGOT_CONFIGS"  # a folder of <model>.json, for models that are not fetched


@dataclass(frozen=True)
class Forecast:
    """What one job is expected to take."""

    step: str
    kind: str  # what makes jobs of one step alike: a kind of hardware
    units: float  # of work
    seconds: float
    memory: int  # bytes
    files: dict[str, int]  # bytes, by output
    download: int = 0
    gpus: int = 0

    @property
    def written(self) -> int:
        return sum(self.files.values())


class Costs:
    """Forecasts for the jobs of one catalogue; `folders` may hold config.json as <model>.json.

    `settled`: nothing changes while it is asked, as in a dry run; then each job is looked at once.
    """

    def __init__(
        self,
        catalogue: dict,
        root: Path,
        past: Past,
        folders: Iterable[Path] = (),
        settled: bool = False,
    ):
        self.catalogue, self.root, self.past, self.folders = catalogue, root, past, list(folders)
        self.models: dict[str, Model] = {}
        self.settled = settled
        self.memory: dict[str, int] = {}  # bytes of a rule's jobs, as the user says
        self.found: dict[tuple[Job, bool], Forecast | None] = {}

    def model(self, name: str) -> Model:
        if name not in self.models or not self.models[name].here:  # fetched meanwhile?
            self.models[name] = Model(name, self.catalogue, self.root, self.folders)
        return self.models[name]

    def of(self, job: Job, corrected: bool = True) -> Forecast | None:
        """What `job` will take; None before config.json is fetched, and of a step without a row."""
        if (job, corrected) in self.found:
            return self.found[job, corrected]
        found = self._of(job, corrected)
        if self.settled:
            self.found[job, corrected] = found
        return found

    def _of(self, job: Job, corrected: bool) -> Forecast | None:
        model = self.model(job.wildcards.get("model", ""))
        work = rows.STEPS[job.step](job, model) if job.step in rows.STEPS else None
        if work is None:
            return None
        cost, units, factors = work.cost, work.units, (1.0, 1.0, 1.0)
        if corrected:
            factors = self.past.factors(job.step, work.kind, units)
        seconds = cost.seconds + cost.per_unit * units + cost.squared * units**2
        memory = (cost.memory + cost.memory_per_unit * units) * 1e6
        bytes_factor = factors[2] if work.guessed else 1
        return Forecast(
            job.step,
            work.kind,
            units,
            seconds * factors[0],
            self.memory.get(job.rule, int(memory * factors[1])) if corrected else int(memory),
            {path: int(size * bytes_factor) for path, size in work.files.items()},
            work.download,
            self.gpus(job),
        )

    def gpus(self, job: Job) -> int:
        """How many `job` needs: known before anything else is."""
        entry = self.catalogue["models"].get(job.wildcards.get("model", ""))
        return rows.gpus(job.step, entry, int(job.wildcards.get("tp", 1))) if entry else 0

    def expected(self, job: Job) -> dict:
        """What goes on record beside the measured cost: the work, and what the constants alone say."""
        found = self.of(job, corrected=False)
        if found is None:
            return {}
        numbers = [found.seconds, found.memory, found.written]
        work = {"step": found.step, "kind": found.kind, "units": found.units}
        return {**work, "expected": numbers}
