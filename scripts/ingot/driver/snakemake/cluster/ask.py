"""What a job asks of a cluster: its forecast, with room to spare, in the cluster's units."""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ingot.base.refused import Refused
from ingot.driver.forecast.costs import Forecast

RUNNER = 300  # MB: Snakemake's own two processes on the node
UNKNOWN = (4_000, 60)  # MB and minutes, of a step without a forecast
SPARE = 1.25  # times the forecast memory
SLOW = 3.0  # times the forecast seconds: file systems of clusters are shared
LEAST = 10  # minutes
CORES = {
    "compile_vmfb": 8,
    "build_engine": 8,
    "quantize_gguf": 8,
    "quantize_float": 8,
    "verify_gguf": 8,
}  # of steps that take what they get; others, as measured
MEASURED = 2  # cores that a forecast's seconds are of
OF_ROLE = {"cpu": ("cpu", "bigmem"), "gpu": ("gpu",), "net": ("net",)}  # of partitions, in turn
NONE: Mapping[str, str] = {}
HERE = (20.0, 1e9)  # seconds and bytes below which a job is done where Snakemake runs


@dataclass(frozen=True)
class Ask:
    """What one job asks for, on one node."""

    memory_mb: int
    minutes: int
    cores: int
    disk_mb: int
    gpus: int

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.memory_mb:,} MB, {self.cores} cores, {self.minutes} min{gpus}"


@dataclass(frozen=True)
class Partition:
    """What each node of a partition has, and how long a job may take; None for no limit."""

    name: str
    memory_mb: int
    cores: int
    gpus: int
    minutes: int | None = None

    def __str__(self) -> str:
        time = "any time" if self.minutes is None else f"{self.minutes} min"
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.name}: {self.memory_mb:,} MB, {self.cores} cores, {time}{gpus}"


def of(step: str, forecast: Forecast | None, more_memory: float = 1, more_time: float = 1) -> Ask:
    """`more_*`: how many times as much as at first, after a try that was stopped for want of it."""
    memory, minutes = UNKNOWN
    if forecast:
        memory = math.ceil(forecast.memory * SPARE / 1e6) + RUNNER
        minutes = max(LEAST, math.ceil(forecast.seconds * SLOW / 60))
    return Ask(
        math.ceil(memory * more_memory),
        math.ceil(minutes * more_time),
        cores(step),
        math.ceil(forecast.written / 1e6) if forecast else 0,
        forecast.gpus if forecast else 0,
    )


def cores(step: str) -> int:
    """Of a node, where the partition has as many."""
    return CORES.get(step, MEASURED)


def here(forecast: Forecast | None, names: Mapping[str, str] = NONE) -> bool:
    """Is a job done where Snakemake runs?  Downloads are, unless the site names a partition for them.

    Compute nodes often have no internet.  INGOT_SUBMIT=all submits what takes seconds, too.
    """
    if forecast is None or forecast.gpus:
        return False
    if forecast.download:
        return "net" not in names
    seconds, memory = (0, 0) if os.environ.get("INGOT_SUBMIT") == "all" else HERE
    return forecast.seconds < seconds and forecast.memory < memory


def role(ask: Ask, forecast: Forecast | None) -> str:
    """What kind of partition a job is for, by what it needs most."""
    if ask.gpus:
        return "gpu"
    return "net" if forecast and forecast.download else "cpu"


def choose(
    ask: Ask,
    partitions: Collection[Partition],
    what: str,
    role: str = "cpu",
    names: Mapping[str, str] = NONE,
    again: bool = False,
) -> tuple[Ask, Partition | None]:
    """The first partition that has what is asked; None where none is known.

    Those that the site names for the role, or else any, those without GPUs first.  Fewer cores are
    taken, and a longer time is cut where it was asked to spare; other wants are refused.  `again`, after a
    try that ran out of time: first those that cut nothing, then those that cut least.
    """
    named = [names[one] for one in OF_ROLE[role] if one in names]
    known = [one for one in partitions if not named or one.name in named]
    if named:
        known.sort(key=lambda one: named.index(one.name))
    else:
        known.sort(key=lambda one: (one.gpus > 0) if not ask.gpus else 0)
    if again:
        known.sort(key=lambda one: -min(one.minutes or ask.minutes, ask.minutes))
    for one in known:
        enough = one.memory_mb >= ask.memory_mb and one.gpus >= ask.gpus
        if enough and (one.minutes is None or one.minutes * SLOW >= ask.minutes):
            minutes = ask.minutes if one.minutes is None else min(ask.minutes, one.minutes)
            return Ask(
                ask.memory_mb, minutes, min(ask.cores, one.cores), ask.disk_mb, ask.gpus
            ), one
    if named and partitions and not known:
        raise Refused(
            f"{what}: the site file names partition {', '.join(named)}, which sinfo does not; "
            "`ingot doctor` says more"
        )
    if known:
        raise Refused(
            f"{what}: asks {ask}, expected what a partition has ({'; '.join(map(str, known))}); "
            "choose another cluster, or a larger tensor parallel size"
        )
    return ask, None
