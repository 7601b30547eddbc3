"""What the driver knows of a format is one row; FORMATS in rows.py holds them all.

A row names the targets that there are, says why one is refused, and what each step that makes or
verifies it takes.  Rows and functions: a new format is one row in a file here, one line in rows.py,
one rule and one script.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model
from ingot.model.gpu_layout import SIZES as SIZES

GB, MB = 1e9, 1e6
CHART = {  # what a format's bytes are drawn as
    "checkpoint": "#4c72b0", "gguf": "#dd8452", "irpa": "#55a868", "ranks": "#c44e52",
    "program": "#8172b3", "engine": "#937860", "other": "#8c8c8c",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """artifacts/<model>[_tp<N>][.<variant>].<format>[.verified.json], parsed, with its catalogue."""

    model: str
    tp: int | None
    variant: str | None
    format: str
    record: bool  # its verification record is asked for
    catalogue: dict[str, Any]

    @property
    def entry(self) -> dict[str, Any]:
        """The model's entry of the catalogue."""
        return self.catalogue["models"][self.model]


@dataclass(frozen=True)
class Cost:
    """What a job of one step takes however small, and per unit of its work; on two cores."""

    seconds: float
    per_unit: float = 0.0  # seconds
    memory: float = 17.0  # MB of peak RSS: a bare Python
    memory_per_unit: float = 0.0
    squared: float = 0.0  # seconds per square of the units


@dataclass(frozen=True)
class Work:
    """One job in numbers, by constants alone.  What a unit of work is, the step's own function says."""

    cost: Cost
    units: float
    files: dict[str, float]  # bytes, by output
    kind: str = ""  # what makes jobs of one step alike: a kind of hardware
    guessed: bool = False  # are the bytes a guess that past jobs correct?
    download: int = 0  # bytes


Step = Callable[[Job, Model], Work | None]  # None: not known before config.json is fetched


def nothing(*_: Any) -> tuple:
    return ()


def always(words: Collection[str]) -> Callable[[Target], Collection[str]]:
    """What a format can, whatever the target."""
    return lambda target: words


@dataclass(frozen=True)
class Format:
    """One row: all that the driver knows of a format."""

    name: str  # the ending of its targets
    what: str  # one phrase, for `ingot targets` and the documents
    steps: dict[str, Step]  # by script: those that make it, and the one that verifies it
    sizes: Callable[[dict], Iterable[int | None]]  # of a catalogue's model; None: without _tpN
    can: Callable[[Target], Collection[str]] = nothing  # what of features.FEATURES it can express
    whole: str = ""  # why it takes no _tpN, where it takes none
    variants: Callable[[dict, int], Iterable[str]] = nothing  # of a catalogue, at a size
    why_not: Callable[[Target], str | None] = nothing  # why a target cannot be built
    record: str = ""  # what a verification record compares it with
    no_record: str = ""  # or why it has none
    final: bool = False  # is it of a release, and of a CI matrix, where nobody names formats?
    serve: str = ""  # the command that serves {title}; behind "  #" what else it needs
    repository: bool = False  # is its folder a repository of a hub, as it is?
    chart: str = "other"  # a key of CHART
    chart_of_ranks: str = ""  # the same of targets with _tpN, where it differs
    links: bool = False  # a folder that holds hard links of what it is made of
    copied: bool = False  # the store has a copy of it, not a link, unless the disk is short
    gpus: dict[str, Callable[[dict, int], int]] = field(default_factory=dict)  # step: (entry, tp)
    devices: str = "hardware"  # the catalogue's table of what it is built for
    servers: tuple[str, ...] = ("shortfin", "vllm")  # whose layouts `ingot plan` shows
    intermediate: bool = False  # not offered as a target
    as_stored: bool = False  # takes weights as they are, such as quantised ones
    # Steps whose bytes are not the same each time: from which tensor parallel size on, and why.
    varies: dict[str, tuple[int, str]] = field(default_factory=dict)


def whole_model(_: dict) -> tuple[None]:
    """The sizes of a format that knows no ranks."""
    return (None,)


def own_sizes(entry: dict) -> list[int]:
    """The sizes that the catalogue names for the model."""
    return entry["tp"]


def written(cost: Cost, size: float = 2000) -> Step:
    """A step that takes as long whatever the model; `size` in bytes of each output."""
    return lambda job, model: Work(cost, 0, dict.fromkeys(job.writes, size))


def read_through(cost: Cost, read: Callable[[Job, Model], float] | None = None, size=2000) -> Step:
    """A step whose unit of work is a GB read, by default of the checkpoint."""

    def work(job: Job, model: Model) -> Work | None:
        if not model.numbers:
            return None
        found = read(job, model) if read else model.checkpoint_bytes()
        return Work(cost, found / GB, dict.fromkeys(job.writes, size))

    return work


TOKENS = 4000  # that a verification runs: 26 prompts and their answers
CORPUS = 24576  # tokens of the corpus that costs are measured with, the default of corpus_tokens


def of_corpus(model: Model) -> float:
    """How many tokens of the corpus are scored: no more than a GB holds distributions of."""
    return min(model.entry["corpus_tokens"], 1e9 / (4 * model.numbers.vocab))


def run_through(cost: Cost, size: float = 2000, corpus: bool = False) -> Step:
    """A step that runs the prompts: its unit is a thousand tokens times a billion weights.

    `corpus`: it runs the whole corpus too, and costs less of a shorter one.
    """

    def work(job: Job, model: Model) -> Work | None:
        if not model.numbers:
            return None
        one_by_one = 2 * TOKENS  # which cost twice as much
        share = (one_by_one + of_corpus(model)) / (one_by_one + CORPUS) if corpus else 1
        mine = replace(cost, per_unit=cost.per_unit * share)  # its memory is the same
        return Work(mine, TOKENS * model.parameters() / 1e12, dict.fromkeys(job.writes, size))

    return work
